"""A checkpoint's files: found, checked, and read; its tokenizer, its prompt, what it was taught."""

from rtcontrol.models.checkpoint.checkpoint import Checkpoint, resolve

__all__ = ["Checkpoint", "resolve"]
