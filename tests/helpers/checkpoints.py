"""Changed copies of checkpoints for tests."""

from __future__ import annotations

from pathlib import Path

from rtcontrol.models.checkpoint.training_metadata import FILE_NAME


def unnamed(checkpoint: Path, folder: Path) -> Path:
    """Copy a checkpoint without its training metadata, so that the model accepts any tools; return the new folder."""
    folder.mkdir()
    for path in checkpoint.iterdir():
        if path.name != FILE_NAME:
            (folder / path.name).symlink_to(path.resolve())
    return folder
