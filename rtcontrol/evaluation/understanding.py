"""How well what people say is understood: each sentence of a list is asked about once, and nothing is flown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from rich.table import Table

from rtcontrol.agents import Agent
from rtcontrol.evaluation.phrasings import Saying
from rtcontrol.evaluation.score_tables import share
from rtcontrol.loop.interpreter import Understood
from rtcontrol.models.errors import UserError
from rtcontrol.run import interpreting

LIMIT_S = 60.0  # nobody waits: how long it takes is told
GATES = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
FAILED = 3  # in a row, and nobody is there
Outcome = Literal["right", "wrong", "not understood"]
Line = dict[str, Any]  # say, means, understood, sure, why, ms


def ask(
    name: str,
    agent: Agent,
    lines: Sequence[Saying],
    engine: str = "torch",
    told: Callable[[int, int], None] = lambda done, total: None,
) -> list[Line]:
    """Of each sentence what it is understood as, whatever the gate. UserError where nobody answers."""
    interpreter = interpreting.interpreter(name, agent, 0.0, LIMIT_S, engine)
    found: list[Line] = []
    failed = 0
    try:
        interpreter.start()
        with ThreadPoolExecutor(interpreting.AT_ONCE) as pool:
            for one, line in zip(pool.map(interpreter.understand, [one.say for one in lines]), lines, strict=True):
                assert one is not None, "nobody gives it up"
                if one.by == interpreter.name and not one.kept:
                    failed = failed + 1 if one.failed else 0
                if failed == FAILED:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise UserError(
                        f"--interpreter {name}: {one.reason}, {FAILED} times in a row.", "See that it runs, and again."
                    )
                found.append(_line(line, one))
                told(len(found), len(lines))
    finally:
        interpreter.end()
    return found


def _line(line: Saying, found: Understood) -> Line:
    sure = None if found.sure is None else round(found.sure, 4)
    told = {"say": line.say, "means": line.means, "understood": found.text, "sure": sure, "why": found.why}
    return {**told, "ms": round(found.took_ms, 2), "asked": found.by != "itself" and not found.kept}


def at(line: Line, gate: float) -> str | None:
    """What a line is understood as under a gate."""
    sure, text = line["sure"], line["understood"]
    return None if text is None or (sure is not None and sure < gate) else text


def outcome(line: Line, gate: float) -> Outcome:
    """Of nonsense it is right that it is not understood."""
    text = at(line, gate)
    if text == line["means"]:
        return "right"
    return "not understood" if text is None else "wrong"


def counts(lines: Sequence[Line], gate: float) -> dict[str, int]:
    """Of sentences with a meaning those understood right, not at all and wrongly; of nonsense what is taken for a
    goal."""
    meant = Counter(outcome(line, gate) for line in lines if line["means"] is not None)
    nonsense = Counter(outcome(line, gate) for line in lines if line["means"] is None)
    return {
        "said": meant.total(),
        "right": meant["right"],
        "not_understood": meant["not understood"],
        "wrong": meant["wrong"],
        "nonsense": nonsense.total(),
        "nonsense_held": nonsense["right"],
    }


def figures(lines: Sequence[Line], gate: float) -> dict[str, Any]:
    """All counts, as JSON."""
    took = sorted(line["ms"] for line in lines if line["asked"])
    whys = Counter(line["why"] for line in lines if line["why"] is not None)
    ms = {name: took[min(len(took) - 1, int(s * len(took)))] for name, s in (("p50", 0.5), ("p90", 0.9)) if took}
    return {"gate": gate, **counts(lines, gate), "why": dict(whys), "ms": ms}


def tables(lines: Sequence[Line], gate: float, name: str, kinds: Mapping[str, str]) -> Iterator[Table]:
    """By gate, and by kind of goal; `kinds` gives the kind of a canonical sentence."""
    made = figures(lines, gate)
    ms = f"; {made['ms']['p50']:.0f} ms (p50), {made['ms']['p90']:.0f} (p90) each" if made["ms"] else ""
    columns = ("gate", "right", "not understood", "wrong", "nonsense held")
    table = Table(*columns, title=f"Understood by {name}{ms}", title_justify="left")
    for one in sorted({*GATES, gate}):
        found = counts(lines, one)
        right = [1] * found["right"] + [0] * (found["said"] - found["right"])
        held = [1] * found["nonsense_held"] + [0] * (found["nonsense"] - found["nonsense_held"])
        cells = (share(right), str(found["not_understood"]), str(found["wrong"]), share(held))
        table.add_row(f"{one:g}" + (" (this)" if one == gate else ""), *cells)
    yield table
    table = Table("goal", "right", "not understood", "wrong", title=f"By kind of goal, gate {gate:g}")
    for kind in dict.fromkeys(kinds.values()):
        own = counts([line for line in lines if line["means"] is not None and kinds[line["means"]] == kind], gate)
        right = [1] * own["right"] + [0] * (own["said"] - own["right"])
        table.add_row(kind, share(right), str(own["not_understood"]), str(own["wrong"]))
    yield table


def kinds_of(agent: Agent, lines: Sequence[Saying]) -> dict[str, str]:
    """The tool's name for each canonical sentence of a list."""
    goals = interpreting.goals_of(agent)
    return {one.means: goals.call(one.goal).name for one in lines if one.means is not None}
