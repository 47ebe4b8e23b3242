"""Checkpoints that tests change."""

from __future__ import annotations

from pathlib import Path

from rtcontrol.models.checkpoint.training_metadata import FILE_NAME


def unnamed(checkpoint: Path, folder: Path) -> Path:
    """A new folder with all of a checkpoint but what it says that it learnt: such a model decides for any tools."""
    folder.mkdir()
    for path in checkpoint.iterdir():
        if path.name != FILE_NAME:
            (folder / path.name).symlink_to(path.resolve())
    return folder
