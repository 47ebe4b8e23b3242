"""The experiments' results as tables: of each arm the mean over its seeds, and each seed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rtcontrol.evaluation.experiments import runs
from rtcontrol.evaluation.experiments.delay import TICKS
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.figure_table import Table, markdown

Results = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By experiment and arm what each seed found."""
Arms = Mapping[str, Mapping[str, Any]]

# Of Student's t with one degree of freedom less than there are seeds, the quantile of 97.5 %.
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}


def tables(results: Results) -> Iterator[tuple[str, Table]]:
    """Of each experiment that has results its tables, by name."""
    for name, arms in results.items():
        if any(arms.values()):
            yield name, TABLES.get(name, _trained)(name, arms)


def percent(counts: Sequence[Sequence[int]]) -> str:
    """The mean share of the seeds with the half of its 95 % interval (Student's t over seeds), and each seed's."""
    shares = [100 * right / count for right, count in counts]
    each = ", ".join(f"{share:.1f}" for share in shares)
    if len(shares) not in T_95:
        return each
    half = T_95[len(shares)] * stdev(shares) / math.sqrt(len(shares))
    return f"**{fmean(shares):.1f}** ± {half:.1f}: {each}"


def _counts(found: Mapping[str, Any], rows: str, way: str, part: str) -> list[list[int]]:
    return [c for one in found.values() if (c := one["right"].get(rows, {}).get(way, {}).get(part)) is not None]


def _trained(name: str, arms: Arms) -> Table:
    """Right calls, decoded freely and under the constraint."""
    columns = {"free": ("own", "free", "all"), "constrained": ("own", "constrained", "all")}
    if name == "independence":
        columns = {"all rows": ("own", "free", "all"), "a place, as one that is told": ("own", "free", "kind any")}
    if name == "balance":
        columns = {f"on {rows} rows": (rows, "free", "all") for rows in ("balanced", "as found")}
        columns |= {f"{n} arguments": ("balanced", "free", f"arguments {n}") for n in (1, 2, 4, 6)}
    rows = []
    for arm, found in arms.items():
        if not found:
            continue
        trained = [one["trained"] for one in found.values()]
        cells = [f"{fmean(t['rows'] for t in trained):,.0f}", f"{fmean(t['tokens_a_row'] for t in trained):.1f}"]
        for where in columns.values():
            # What a balance has is its own rows, of whichever name.
            counts = _counts(found, *where) or (_counts(found, "balanced", *where[1:]) if where[0] == "own" else [])
            cells.append(percent(counts) if counts else "")
        rows.append((arm, *cells))
    return Table("Calls that are right, %", ("", "rows trained", "tokens a row", *columns), tuple(rows))


def _places(name: str, arms: Arms) -> Table:
    rows = []
    for arm, found in arms.items():
        each = [*found.values()]
        cells = [percent([[one["right"], one["of"]] for one in each])]
        for kind in ("told", "mixed", "neither"):
            cells.append(percent([[one[kind], one["of"]] for one in each]) if kind in each[0] else "")
        rows.append((arm, *cells))
    columns = ("", "whole call right, free", "place is one that is told", "x of one, y of another", "neither")
    return Table("Of the rows with a place, %", columns, tuple(rows))


def _delay(name: str, arms: Arms) -> Table:
    rows = []
    for arm, found in arms.items():
        ticks = [one["ticks"] for one in found.values()]
        cells = []
        for late in ticks[0] if ticks else ():
            each = [fmean(one[late]) for one in ticks]
            cells.append(f"**{fmean(each):.0f}**: {', '.join(f'{e:.0f}' for e in each)}")
        rows.append((f"trained {arm}", *cells))
    columns = ("", *(f"flown {late} ticks late" for late in next(iter(next(iter(arms.values())).values()))["ticks"]))
    return Table(
        f"Ticks that the pole stood (of {TICKS}), mean of 20 episodes a seed, the same starts",
        columns,
        tuple(rows),
    )


def _schemas(name: str, arms: Arms) -> Table:
    rows = []
    for arm, found in arms.items():
        cells = [
            percent([[one["right"][judged], one["of"]] for one in found.values()]) for judged in ("one schema", "drawn")
        ]
        trained = [one["trained"] for one in found.values()]
        tokens = [t["tokens_a_row"] for t in trained if "tokens_a_row" in t]
        each = f"{fmean(tokens):.1f}" if tokens else ""
        rows.append((f"trained on {arm}", f"{fmean(t['rows'] for t in trained):,.0f}", each, *cells))
    columns = ("", "rows trained", "tokens a row", "judged on the one schema", "on schemas never seen")
    return Table("Calls that are right, %, decoded freely", columns, tuple(rows))


def _latency(name: str, arms: Arms) -> Table:
    found = list(next(iter(arms.values())).values())
    rows = []
    for way in found[0]["ways"]:
        told = [one["ways"][way] for one in found]
        right = percent([[int(t["right"]), one["rows"]] for t, one in zip(told, found, strict=True)])
        ms = [" / ".join(f"{t[p]:.1f}" for p in ("p50_ms", "p90_ms", "p99_ms")) for t in told]
        rows.append((way, "; ".join(ms), f"{fmean(t['passes'] for t in told):.2f}", right))
    ratio = fmean(one["json_tokens"] / one["longest_head"] for one in found)
    note = (
        f"Tokens: the longest head has {fmean(one['longest_head'] for one in found):.2f}, the JSON call "
        f"{fmean(one['json_tokens'] for one in found):.2f}, {ratio:.1f} times as many (mean over the same rows)."
    )
    return Table("Text to typed call", ("", "p50 / p90 / p99 ms, by seed", "passes", "right, %"), tuple(rows), note)


def _drafts(name: str, arms: Arms) -> Table:
    found = list(next(iter(arms.values())).values())
    rows = []
    for way in found[0]["ways"]:
        cells = []
        for key, form in (("passes", "{:.2f}"), ("tokens", "{:.1f}"), ("accepted", "{:.1%}")):
            each = [one["ways"][way][key] for one in found]
            cells.append(f"**{form.format(fmean(each))}** ({', '.join(map(form.format, each))})")
        rows.append((way, *cells))
    texts = "; ".join(f"{one['target_right']}, {one['draft_right']}, {one['same']}" for one in found)
    note = f"Of {found[0]['rows']} calls a seed right by the target, right by the draft, the same by both: {texts}."
    columns = ("drafted", "passes", "tokens", "guessed tokens that were right")
    return Table("A text's passes", columns, tuple(rows), note)


TABLES: Mapping[str, Callable[[str, Arms], Table]] = {
    "delay": _delay,
    "places": _places,
    "schemas": _schemas,
    "latency": _latency,
    "drafts": _drafts,
}


def gathered(names: Sequence[str], seeds: int, out: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """By experiment, arm and seed, what is done."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name in names:
        arms = found.setdefault(name, {})
        for seed in (runs.RATES_SEED,) if name == runs.RATES else range(seeds):
            for arm, run in runs.of(name, seed, out).items():
                result = run.result()
                if result is not None:
                    arms.setdefault(arm, {})[str(seed)] = result
    return found


def check_marks(text: str, names: Sequence[str]) -> None:
    """Raises UserError where a mark is missing."""
    for mark in (mark for name in names for mark in _marks(name)):
        if mark not in text:
            raise UserError(f"The page lacks {mark}.", "Put it where the table is to begin, or to end.")


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->", f"<!-- /{name} -->"


def filled(text: str, results: Results) -> str:
    """The page with the tables of `results` in place of those that it has. Raises UserError where a mark is missing."""
    for name, table in tables(results):
        check_marks(text, [name])
        begin, end = _marks(name)
        block = f"{begin}\n{markdown([table])}\n{end}"
        text = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _, new=block: new, text, flags=re.DOTALL)  # type: ignore[misc]
    return text


def write_tables(folder: Path) -> list[Path]:
    """Put the tables of the folder's results into the page beside it, where there are both; gives what changed."""
    results, page = folder / "experiments.json", folder.parent / "experiments.md"
    if not (results.exists() and page.exists()):
        return []
    text = page.read_text("utf-8")
    new = filled(text, json.loads(results.read_text("utf-8"))["experiments"])
    if new == text:
        return []
    page.write_text(new, "utf-8")
    return [page]
