"""Ablations: one run for each value of each axis, all else as the sweep's own recipe has it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.finetune import config
from rtcontrol.models.train.finetune.checkpoints import base_digest
from rtcontrol.models.train.finetune.config import PRESETS, FinetuneRecipe, check_extras
from rtcontrol.models.train.finetune.dataset import digest
from rtcontrol.models.train.finetune.outcome import RESULT, write_json
from rtcontrol.models.train.finetune.run import Job, finetune

FIELDS = "base, rows, out, and optionally held_out, preset, recipe, axes, mode (each or grid), drop_bad"
TABLE = "sweep.json"
ROWS = "rows"  # the axis that is no setting of the recipe


@dataclass(frozen=True)
class SweepRun:
    """One run: its folder's name, what differs from the sweep's recipe, and the job."""

    name: str
    changed: str
    job: Job


@dataclass(frozen=True)
class Sweep:
    """All runs; `out` holds their folders and the table."""

    out: Path
    runs: tuple[SweepRun, ...]


def read_sweep(file: Path) -> Sweep:
    """The runs that a TOML or JSON file asks for: the recipe itself first, then one for each value of an axis (`mode`
    "each"), or one for each combination ("grid"). An axis is a setting of the recipe with a list of values, or `rows`
    with a list of lists of files. Raises UserError naming file and field."""
    found = config.read(file)
    known = {"base", "rows", "out", "held_out", "preset", "recipe", "axes", "mode", "drop_bad"}
    if unknown := sorted(set(found) - known):
        raise UserError(f"{file}: a sweep has no {unknown[0]!r}.", f"It has {FIELDS}.")
    base, out = (_text(file, found, name) for name in ("base", "out"))
    rows, held_out = _files(file, found, "rows"), _files(file, found, "held_out")
    if not rows:
        raise UserError(f"{file}: it has no rows.", "Name the files: rows = ['rows.jsonl']")
    preset, mode = found.get("preset", "paper"), found.get("mode", "each")
    if preset not in PRESETS or mode not in ("each", "grid"):
        what, choice = (preset, " or ".join(PRESETS)) if preset not in PRESETS else (mode, "each or grid")
        raise UserError(f"{file}: there is no {what!r}.", f"Choose {choice}.")
    settings, axes = _table(file, found, "recipe"), _table(file, found, "axes")
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            raise UserError(f"{file}: the axis {name} is {values!r}.", "Write a list of its values.")
    plain = {**PRESETS[preset], **settings}
    changes: list[dict[str, Any]] = [{}]
    if mode == "each":
        changes += [{name: value} for name, values in axes.items() for value in values]
    else:
        changes = [dict(zip(axes, combination, strict=True)) for combination in product(*axes.values())]
    runs: dict[str, SweepRun] = {}
    for change in changes:
        own = [*change.pop(ROWS)] if isinstance(change.get(ROWS), list) else change.pop(ROWS, None)
        files = rows if own is None else _files(file, {ROWS: own}, ROWS)
        recipe = config.checked({**plain, **_with_alpha(change, plain)}, file)
        told = {**change, **({} if own is None else {ROWS: [Path(f).stem for f in files]})}
        changed = ", ".join(f"{k} {_shown(v)}" for k, v in told.items()) or "nothing"
        name = re.sub(r"[^\w.]+", "-", changed).strip("-") if told else "plain"
        job = Job(base, files, Path(out) / name, recipe, held_out, bool(found.get("drop_bad")))
        if name in runs:
            raise UserError(f"{file}: two runs are called {name!r}.", "Take out the value that stands twice.")
        runs[name] = SweepRun(name, changed, job)
    return Sweep(Path(out), tuple(_unlike(runs.values())))


def _unlike(runs: Any) -> list[SweepRun]:
    """Without those that are another once more: the axis' value that the recipe itself has."""
    kept: list[SweepRun] = []
    seen: list[tuple[FinetuneRecipe, tuple[Path, ...]]] = []
    for planned in runs:
        if (key := (planned.job.recipe, planned.job.rows)) not in seen:
            seen.append(key)
            kept.append(planned)
    return kept


def _with_alpha(change: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """A rank brings its alpha with it, in the recipe's proportion: else the adapter's scale would be ablated too."""
    if "rank" not in change or "alpha" in change or not isinstance(change["rank"], int):
        return dict(change)
    default = FinetuneRecipe()
    scale = plain.get("alpha", default.alpha) / plain.get("rank", default.rank)
    return {**change, "alpha": max(1, round(change["rank"] * scale))}


def run_sweep(sweep: Sweep, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Each run's result, with its name and what it changed; `sweep.json` has those that are done, after each of them.
    Raises UserError; what is done stays, and is not done again."""
    check_extras()
    found: list[dict[str, Any]] = []
    for number, planned in enumerate(sweep.runs, 1):
        head = f"[{number}/{len(sweep.runs)}] {planned.name}"
        say(head)

        def told(line: dict[str, Any], head: str = head) -> None:
            say(f"{head}  step {line['step']}/{line['steps']}  loss {line['loss']:.4f}")

        result, written = _done(planned.job), True
        if result is None:
            outcome = finetune(planned.job, told)
            result, written = outcome.to_dict(), outcome.written
        found.append({"name": planned.name, "changed": planned.changed, **result})
        if written:
            try:
                write_json(sweep.out / TABLE, {"runs": found})
            except OSError as error:
                raise UserError(
                    f"{sweep.out / TABLE} cannot be written ({error.strerror}).", "Make room; what is done stays."
                ) from None
    return found


def _done(job: Job) -> dict[str, Any] | None:
    """The result of the same job, where its folder has one."""
    try:
        result: dict[str, Any] = json.loads((job.out / RESULT).read_text("utf-8"))
        run, held_out = result["run"], (result["held_out"] or {}).get("files", {})
    except (OSError, ValueError, KeyError):
        return None
    same = (
        run["recipe"] == job.recipe.settings()
        and [*run["rows"].values()] == [digest(file) for file in job.rows]
        and [*held_out.values()] == [digest(file) for file in job.held_out]
        and run["base"]["sha256"] == base_digest(resolve(job.base))
    )
    return result if same else None


def _text(file: Path, found: Mapping[str, Any], name: str) -> str:
    if not isinstance(value := found.get(name), str) or not value:
        raise UserError(f"{file}: its {name} is {value!r}.", f"Name it: {name} = '...'")
    return value


def _table(file: Path, found: Mapping[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(value := found.get(name, {}), dict):
        raise UserError(f"{file}: {name} is {value!r}.", f"Write a table: [{name}]")
    return value


def _files(file: Path, found: Mapping[str, Any], name: str) -> tuple[Path, ...]:
    value = found.get(name, [])
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(f, str) and f for f in listed):
        raise UserError(f"{file}: {name} is {value!r}.", f"Name the files: {name} = ['rows.jsonl']")
    return tuple(map(Path, listed))


def _shown(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else json.dumps(value).strip('"')
