"""The figures as they grow: written after every few episodes, and gone on with where they stop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rtcontrol.envs.evaluate import Played
from rtcontrol.evaluation.phrasings import Saying
from rtcontrol.evaluation.score_plan import LISTENED_S, Cell, Settings
from rtcontrol.models.errors import UserError
from rtcontrol.models.files import replace_file
from rtcontrol.telemetry.decoder_state import kept as state_of
from rtcontrol.telemetry.decoder_state import restore
from rtcontrol.telemetry.run_folder import describe
from rtcontrol.telemetry.steadiness import Steadiness

SCHEMA = 2
KEPT = 4_096  # a cell's decisions whose confidence is kept, spread over all


class Document:
    """`data` is all that was measured; with a `path` it is in that file after each `add`. UserError where the file
    holds something else, or cannot be written. `tools` are the agent's definitions, for the ranges of their numbers."""

    def __init__(self, settings: Settings, path: Path | None) -> None:
        self.tools: list[dict[str, Any]] = []
        self._path = path = path and path.resolve()  # what a link stands for is written, not the link
        told = json.loads(json.dumps(asdict(settings)))
        self.data: dict[str, Any] = {"score": SCHEMA, "settings": told, "complete": False, "cells": {}}
        if path is not None and path.is_file() and path.stat().st_size:
            self.data = _read(path, told)
        self.cells: dict[str, dict[str, Any]] = self.data["cells"]

    @property
    def begun(self) -> bool:
        """Whether there is something of an earlier run."""
        return bool(self.cells)

    def done(self, cell: Cell) -> int:
        """How many of its cases were flown."""
        return len(self.cells[cell.key]["outcomes"]) if cell.key in self.cells else 0

    def steadiness(self, cell: Cell) -> Steadiness:
        """What was counted of the cell's calls so far, to go on from."""
        made, known = Steadiness(), self.cells.get(cell.key, {}).get("steadiness", {}).get("counted")
        made.header({"tools": self.tools})
        if known is not None:
            restore(made, known)
        return made

    def add(
        self,
        cell: Cell,
        flown: Sequence[Played],
        figures: dict[str, Any] | None = None,
        watched: Steadiness | None = None,
    ) -> None:
        """What came of the cell's next cases, and how steady its calls are, in all."""
        if (kept := self.cells.get(cell.key)) is None:
            self.cells[cell.key] = kept = _new(cell)
        listened = max(1, round(LISTENED_S * cell.hz))
        for one in flown:
            kept["seeds"].append(one.case.seed)
            kept["outcomes"].append(int(bool(one.episode.success)))
            kept["returns"].append(round(float(one.episode.ret), 3))
            kept["seconds"].append(round(one.episode.seconds, 3))
            kept["ends"].append(str(one.episode.detail.get("end")))
            if (sure := one.kept.get("sure")) or one.kept.get("lost"):
                # The median of the first second: a sentence is understood, or not, before much has happened. Who never
                # decides is never sure.
                first = sorted((sure or [0.0])[:listened])
                kept.setdefault("sure", []).append(round(first[len(first) // 2], 4))
                idle = one.kept["idle"][:listened]
                kept.setdefault("unsure", []).append(int(2 * sum(idle) > len(idle)))
            for name in ("held", "lost"):
                kept[name] = kept.get(name, 0) + one.kept.get(name, 0)
            _keep(kept, one.kept.get("confidence", ()), one.kept.get("agrees", ()))
        if watched is not None:
            for member in list(watched.members):
                watched.leave(member)
            kept["steadiness"] = {**watched.summary(), "counted": state_of(watched)}
        if figures is not None:
            kept.setdefault("runs", []).append(figures)
        self.write()

    def lines(self, lines: Sequence[Saying]) -> None:
        """What was said, in the order of the cells' outcomes."""
        if lines:
            self.data["lines"] = [{"say": one.say, "means": one.means} for one in lines]

    def write(self) -> None:
        if self._path is None:
            return
        try:
            replace_file(self._path, json.dumps({**self.data, "machine": describe()}, indent=1) + "\n")
        except OSError as error:
            raise UserError(
                f"{self._path} cannot be written ({error.strerror}); what it holds is whole, as of before.",
                "Make room, and give the same command again: it goes on there.",
            ) from None


def _keep(kept: dict[str, Any], confidence: Sequence[float], agrees: Sequence[bool]) -> None:
    """Every `every`-th of all decisions: the last ones no more than the first."""
    every = kept.setdefault("every", 1)
    start = -kept.setdefault("decisions", 0) % every
    kept["decisions"] += len(confidence)
    kept.setdefault("confidence", []).extend(round(c, 4) for c in confidence[start::every])
    kept.setdefault("agrees", []).extend(int(a) for a in agrees[start::every])
    while len(kept["confidence"]) > KEPT:
        kept["every"] *= 2
        kept["confidence"], kept["agrees"] = kept["confidence"][::2], kept["agrees"][::2]


def _new(cell: Cell) -> dict[str, Any]:
    told = {"part": cell.part, "title": cell.title, "by": cell.by, "hz": cell.hz, "delay": cell.delay}
    told |= {"wall": cell.wall, "told": list(dict.fromkeys(case.instruction for case in cell.cases))[:8]}
    return {**told, "seeds": [], "outcomes": [], "returns": [], "seconds": [], "ends": []}


def _read(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    remedy = "Name another file, or remove this one."
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        found = None
    parts = ("settings", "cells")
    if (
        not isinstance(found, dict)
        or found.get("score") != SCHEMA
        or not all(isinstance(found.get(p), dict) for p in parts)
    ):
        raise UserError(f"--json {path} is there already, and holds no score.", remedy)
    held = found["settings"]
    if isinstance(was := held.get("contents"), dict):
        now = settings["contents"]
        if changed := [name for name in {**was, **now} if was.get(name) != now.get(name)]:
            raise UserError(f"--json {path} holds a score from before {changed[0]} changed.", remedy)
    if other := [name for name, value in settings.items() if held.get(name) != value]:
        name = other[0]
        raise UserError(
            f"--json {path} holds a score of other settings: {name} is {held.get(name)!r} there, {settings[name]!r} "
            "here.",
            remedy,
        )
    found["complete"] = False
    return dict(found)
