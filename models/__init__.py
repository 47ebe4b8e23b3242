"""Models that choose function calls: tool schemas, decoding, engines, checkpoints, training data and training."""

__version__ = "0.1.0"
