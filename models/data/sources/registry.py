"""The sets by name, as the command line has them: `xlam`, `seal-tools:in-domain=FOLDER`, or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rtcontrol.models.data.row import placed
from rtcontrol.models.data.sample import Dropped, PlacedRow, Sample
from rtcontrol.models.data.sources import chat, openfunctions, seal_tools, toolalpaca, xlam
from rtcontrol.models.data.sources.files import data_file, located, version
from rtcontrol.models.errors import UserError

Found = Iterator[Sample | Dropped | PlacedRow]
FORM = "NAME[:PART,...][=PLACE], as seal-tools:dev=FOLDER or toolalpaca=eval_simulated.json, or a file of rows (JSONL)"


@dataclass(frozen=True)
class DataSet:
    """`read(part, place)`; `part` is read where none of the `parts` is named. `hub` is where it is from where no place
    is given ("": it must be given)."""

    read: Callable[[str, str], Iterator[Sample | Dropped]]
    parts: tuple[str, ...] = ()
    part: str = ""
    hub: str = ""


def _chat(_: str, place: str) -> Iterator[Sample | Dropped]:
    path = data_file(located(place, "chats in OpenAI's format"))
    return chat.samples(path, f"{path.name} ({version(path)})")


def _mobile_actions(part: str, place: str) -> Iterator[Sample | Dropped]:
    """Chats over seven tools, with the date and time in the developer's message."""
    path = data_file(located(place, "Mobile Actions"), "dataset.jsonl", "*.jsonl")
    source = f"mobile-actions ({version(path)}){':' if part else ''}{part}"
    return chat.samples(path, source, {"metadata": part} if part else None)


SETS = {
    "mobile-actions": DataSet(_mobile_actions, ("train", "eval"), hub="google/mobile-actions"),
    "seal-tools": DataSet(seal_tools.samples, seal_tools.PARTS, "in-domain"),
    "openfunctions": DataSet(lambda _, place: openfunctions.samples(place)),
    "toolalpaca": DataSet(lambda _, place: toolalpaca.samples(place)),
    "xlam": DataSet(lambda _, place: xlam.samples(place), hub=xlam.HUB),
    "openai": DataSet(_chat),
}


def read(given: str) -> Found:
    """What a source gives, by its name or as a file of rows. Raises UserError."""
    head, _, place = given.partition("=")
    name, _, parts = head.partition(":")
    if name not in SETS:
        if not Path(given).is_file():
            raise UserError(f"{given!r} is neither a file nor a set.", f"Write {FORM}. Sets: {', '.join(SETS)}.")
        return (PlacedRow(row, where) for where, row in placed(Path(given)))
    data = SETS[name]
    if not place and not data.hub:
        raise UserError(f"Where {name} is was not said.", f"Write {head}=PLACE: its file or folder, or a hub id.")
    wanted = parts.split(",") if parts else [data.part]
    if unknown := [part for part in wanted if part not in (*data.parts, data.part)]:
        hint = f"Choose of: {', '.join(data.parts)}." if data.parts else f"Write {name} alone."
        raise UserError(f"{name} has no part {unknown[0]!r}.", hint)
    return (one for part in wanted for one in data.read(part, place or data.hub))
