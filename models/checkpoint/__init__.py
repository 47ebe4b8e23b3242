"""A checkpoint's files: found, checked, and read; its tokenizer, its prompt, what it was trained on."""

from rtcontrol.models.checkpoint.checkpoint import Checkpoint, resolve

__all__ = ["Checkpoint", "resolve"]
