"""Benchmarks: each figure next to its baselines, by the same model, on the same machine, in one run."""
