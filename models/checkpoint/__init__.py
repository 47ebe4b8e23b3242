"""Find, check and read a checkpoint: its tokenizer, its prompt, and what it was trained on."""

from rtcontrol.models.checkpoint.checkpoint import Checkpoint, resolve

__all__ = ["Checkpoint", "resolve"]
