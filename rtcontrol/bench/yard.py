"""A published generator of tasks that `fit` is measured by: a yard robot with six tools and seven kinds of goal, four
of which name a thing or a colour. What is right follows from the text alone (`right`), so anybody can score any model.

`python -c "from rtcontrol.bench.yard import few_rows; few_rows('runs/few', {'nothing': None, 'base': 'base'})"` prints
what few rows teach.

An observation: `holding nothing . crate red north near . barrel blue here . cone green west far . gate east . dock
south`: each thing with its colour and where it is, in any order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.train.rows import Row

THINGS = ("crate", "barrel", "cone", "pallet", "drum", "sack")
COLOURS = ("red", "green", "blue", "yellow", "white", "black")
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}
SIDES = tuple(BACK)
ITEMS = (2, 3, 4)  # how many things there may be
SPEEDS = ("slow", "fast")


def _tool(name: str, description: str, **parameters: tuple[str, ...]) -> dict[str, Any]:
    properties = {key: {"type": "string", "enum": list(values)} for key, values in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": description, "parameters": schema}


TOOLS = [
    _tool("drive", "Drive one step.", side=SIDES, speed=SPEEDS),
    _tool("grab", "Take what is here."),
    _tool("release", "Put down what is held."),
    _tool("scan", "Look at what is on a side.", side=SIDES),
    _tool("charge", "Charge at the dock."),
    _tool("wait", "Do nothing for a step."),
]
WAIT = Call("wait")
# How each kind of goal is said; {thing} and {colour} name one of those that are there.
GOALS = {
    "fetch": ("bring the {thing} to the gate", "carry the {thing} to the gate"),
    "approach": ("go to the {colour} one", "drive up to the {colour} one"),
    "avoid": ("keep away from the {thing}", "stay clear of the {thing}"),
    "inspect": ("inspect the {colour} one", "take a look at the {colour} one"),
    "recharge": ("recharge", "go and charge"),
    "leave": ("leave through the gate", "drive out"),
    "pause": ("pause", "stand still"),
}


def observe(rng: random.Random) -> str:
    """A random state of the yard."""
    count = rng.choice(ITEMS)
    things = [
        f"{thing} {colour} {_place(rng)}"
        for thing, colour in zip(rng.sample(THINGS, count), rng.sample(COLOURS, count), strict=True)
    ]
    held = things[0].split()[0] if rng.random() < 0.25 else "nothing"
    if held != "nothing":
        things[0] = " ".join([*things[0].split()[:2], "here"])
    rng.shuffle(things)
    side, dock = rng.choice([*SIDES, "here"]), rng.choice([*SIDES, "here"])
    return " . ".join([f"holding {held}", *things, f"gate {side}", f"dock {dock}"])


def _place(rng: random.Random) -> str:
    return "here" if rng.random() < 0.2 else f"{rng.choice(SIDES)} {rng.choice(('near', 'far'))}"


def situation(rng: random.Random) -> tuple[str, str]:
    """A random (instruction, observation): all kinds of goals are as frequent, and name what is there."""
    seen = observe(rng)
    return instruction(rng, seen), seen


def instruction(rng: random.Random, seen: str) -> str:
    """One of the ways to say one of the goals, of this state."""
    item = rng.choice([part.split() for part in seen.split(" . ")[1:-2]])
    return rng.choice(GOALS[rng.choice(tuple(GOALS))]).format(thing=item[0], colour=item[1])


def kind_of(told: str) -> str:
    """The goal that an instruction is of."""
    for kind, said in GOALS.items():
        if any(told.startswith(text.partition("{")[0].strip()) for text in said):
            return kind
    raise ValueError(f"{told!r} is no goal of the yard")


def right(told: str, seen: str) -> Call:
    """The call that is right: the scripted expert, on exactly what a model reads."""
    kind = kind_of(told)
    parts = [part.split() for part in seen.split(" . ")]
    held, items = parts[0][1], parts[1:-2]
    gate, dock = parts[-2][1], parts[-1][1]
    named = next((item for item in items if {item[0], item[1]} & set(told.split())), None)
    if kind == "pause":
        return WAIT
    if kind == "recharge":
        return Call("charge") if dock == "here" else _drive(dock, "slow")
    if kind == "leave":
        return WAIT if gate == "here" else _drive(gate, "fast")
    if named is None:
        raise ValueError(f"{told!r} names nothing that is there: {seen}")
    side, far = named[2], named[-1] == "far"
    if kind == "fetch":
        if held == named[0]:
            return Call("release") if gate == "here" else _drive(gate, "slow")
        if held != "nothing":
            return Call("release")
        return Call("grab") if side == "here" else _drive(side, "fast" if far else "slow")
    if kind == "approach":
        return WAIT if side == "here" else _drive(side, "fast" if far else "slow")
    if kind == "avoid":
        return WAIT if far else _drive("north" if side == "here" else BACK[side], "fast")
    return WAIT if side == "here" else Call("scan", {"side": side})


def _drive(side: str, speed: str) -> Call:
    return Call("drive", {"side": side, "speed": speed})


class Yard:
    """Rows for ever."""

    def rows(self, rng: random.Random) -> Iterator[Row]:
        """Fresh ones."""
        while True:
            told, seen = situation(rng)
            yield Row(told, seen, right(told, seen))


def changes(count: int = 2_000, seed: int = 0) -> float:
    """The share of states in which another instruction, drawn as any, has another right call."""
    rng = random.Random(seed)
    different = 0
    for _ in range(count):
        told, seen = situation(rng)
        different += right(told, seen) != right(instruction(rng, seen), seen)
    return different / count


def drawn(count: int, seed: int) -> list[tuple[str, str, Call]]:
    """So many (instruction, observation, right call), no two the same."""
    rng = random.Random(f"yard/{seed}")
    found: dict[tuple[str, str], Call] = {}
    while len(found) < count:
        told, seen = situation(rng)
        found[told, seen] = right(told, seen)
    return [(told, seen, call) for (told, seen), call in found.items()]


FEW = (50, 200, 1_000, 5_000)
NEW = 1_000  # situations that a model is judged by, none of which it saw


def few_rows(
    out: str, bases: Mapping[str, str | None], counts: Sequence[int] = FEW, minutes: float = 4.0, seed: int = 0
) -> None:
    """Print, for each base (None: a new model) and number of rows, how many of `NEW` situations it calls right after a
    fit of at most so many minutes in a folder of `out`. A fit that was stopped goes on."""
    from rtcontrol import fit

    rows, judged = drawn(max(counts), seed), drawn(max(counts) + NEW, seed)[max(counts) :]
    for name, base in bases.items():
        for count in counts:
            folder = Path(out) / f"{name}-{count}"
            made = fit(rows[:count], TOOLS, out=folder, base=base, minutes=minutes, seed=seed)
            good = [made.decide(seen, told).call == call for told, seen, call in judged]
            kinds = {
                kind: [g for g, (told, *_) in zip(good, judged, strict=True) if kind_of(told) == kind] for kind in GOALS
            }
            shares = " ".join(f"{kind} {sum(of)}/{len(of)}" for kind, of in kinds.items())
            print(f"{name:8} {count:5} rows: {sum(good)} of {NEW} right; {shares}", flush=True)
