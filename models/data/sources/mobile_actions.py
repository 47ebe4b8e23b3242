"""Mobile Actions (google/mobile-actions): chats over seven tools, with the date and time in the developer's message."""

from __future__ import annotations

from collections.abc import Iterator

from rtcontrol.models.data.sample import Dropped, Sample
from rtcontrol.models.data.sources import chat
from rtcontrol.models.data.sources.files import data_file, located, version
from rtcontrol.models.errors import UserError

HUB = "google/mobile-actions"
PARTS = ("train", "eval")


def samples(part: str = "", given: str = HUB) -> Iterator[Sample | Dropped]:
    """One part ("train", "eval"), or all of it. Types are written large and tools lack their wrapper; each sample has
    its own order of properties."""
    if part and part not in PARTS:
        raise UserError(f"Mobile Actions has no part {part!r}.", f"Choose of: {', '.join(PARTS)}.")
    path = data_file(located(given, "Mobile Actions"), "dataset.jsonl", "*.jsonl")
    source = f"mobile-actions ({version(path)}){':' if part else ''}{part}"
    yield from chat.samples(path, source, {"metadata": part} if part else None)
