"""The sets by name, as the command line has them: `bfcl:live_multiple`, `seal-tools:in-domain=FOLDER`, or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rtcontrol.models.data.row import DataRow, read_rows
from rtcontrol.models.data.sample import Dropped, Sample
from rtcontrol.models.data.sources import bfcl, chat, mobile_actions, openfunctions, seal_tools, toolalpaca, xlam
from rtcontrol.models.data.sources.files import data_file, located, version
from rtcontrol.models.errors import UserError

Found = Iterator[Sample | Dropped | DataRow]


@dataclass(frozen=True)
class SourceOptions:
    """How sets are read: `python` has BFCL's package (see `bfcl.package_folder`); `optionals`: of BFCL's gold values
    that may be left out."""

    python: Path | None = None
    optionals: bfcl.Optionals = "omit"


@dataclass(frozen=True)
class DataSet:
    """`read(part, place, options)`; `parts` are read one after the other where none is named. `place` is where it is
    from where none is given: None, it must be given."""

    read: Callable[[str, str, SourceOptions], Iterator[Sample | Dropped]]
    parts: tuple[str, ...] = ("",)
    place: str | None = None
    others: tuple[str, ...] = ()  # parts that are read where they are named alone


def _bfcl(part: str, place: str, options: SourceOptions) -> Iterator[Sample | Dropped]:
    return bfcl.samples(part, Path(place) if place else options.python, options.optionals)


def _chat(_: str, place: str, __: SourceOptions) -> Iterator[Sample | Dropped]:
    path = data_file(located(place, "chats in OpenAI's format"))
    return chat.samples(path, f"{path.name} ({version(path)})")


SETS = {
    "bfcl": DataSet(_bfcl, bfcl.CATEGORIES, ""),
    "mobile-actions": DataSet(
        lambda part, place, _: mobile_actions.samples(part, place), ("",), mobile_actions.HUB, mobile_actions.PARTS
    ),
    "seal-tools": DataSet(
        lambda part, place, _: seal_tools.samples(part, place), ("in-domain",), None, seal_tools.PARTS[1:]
    ),
    "openfunctions": DataSet(lambda _, place, __: openfunctions.samples(place)),
    "toolalpaca": DataSet(lambda _, place, __: toolalpaca.samples(place)),
    "xlam": DataSet(lambda _, place, __: xlam.samples(place), ("",), xlam.HUB),
    "openai": DataSet(_chat),
}
FORM = "NAME[:PART,...][=PLACE], as bfcl:simple_python or toolalpaca=eval_simulated.json, or a file of rows (JSONL)"


def read(given: str, options: SourceOptions | None = None) -> Found:
    """What a source gives, by its name or as a file of rows. Raises UserError."""
    options = options or SourceOptions()
    head, _, place = given.partition("=")
    name, _, parts = head.partition(":")
    if name not in SETS:
        if not Path(given).is_file():
            raise UserError(f"{given!r} is neither a file nor a set.", f"Write {FORM}. Sets: {', '.join(SETS)}.")
        return read_rows(Path(given))
    data = SETS[name]
    if not place and data.place is None:
        raise UserError(f"Where {name} is was not said.", f"Write {head}=PLACE: its file or folder, or a hub id.")
    wanted = tuple(parts.split(",")) if parts else data.parts
    known = (*data.parts, *data.others)
    if unknown := [part for part in wanted if part not in known]:
        listed = ", ".join(part for part in known if part)
        remedy = f"Choose of: {listed}." if listed else f"Write {name} alone."
        raise UserError(f"{name} has no part {unknown[0]!r}.", remedy)
    return (one for part in wanted for one in data.read(part, place or data.place or "", options))
