"""Find, check and read checkpoints: tokenizer, prompt template and training metadata."""

from rtcontrol.models.checkpoint.checkpoint import Checkpoint, resolve

__all__ = ["Checkpoint", "resolve"]
