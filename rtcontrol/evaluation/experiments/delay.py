"""Does it help to train for calls that act late? A pole (Gymnasium's CartPole) is balanced from its text.

A call that is decided at tick t acts at t + `late`: the label of what is seen at t is what the expert would call at
t + `late`, and the history shows the calls decided since, which act meanwhile. Who is trained on time labels what it
sees with what is right now.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import gymnasium
from tokenizers import Tokenizer

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate, tools_text
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.policy import TreeDecider
from rtcontrol.models.train.prepared import prepare
from rtcontrol.models.train.rows import Row, RowEncoder
from rtcontrol.models.train.scratch import ModelShape, new_model
from rtcontrol.models.train.trainer import TrainConfig, Trainer
from rtcontrol.models.train.vocabulary import build_tokenizer

TOOLS = [
    {
        "name": "push",
        "parameters": {"properties": {"to": {"enum": ["left", "right"]}}, "required": ["to"]},
    }
]
CALLS = (Call("push", {"to": "left"}), Call("push", {"to": "right"}))
TOLD = "balance the pole"
HISTORY = 3  # calls
WORLDS, NOISE, BURST = 32, 0.04, 4  # a burst of random pushes begins in so many of the ticks
TICKS = 250  # of an episode at the most
PHYSICS = 2  # steps of 20 ms a tick: 25 decisions a second
SHAPE = ModelShape(hidden=128, layers=4, heads=4, kv_heads=4, intermediate=384)
NUMBERS = 400


@dataclass(frozen=True)
class Lateness:
    """What is trained: `late` are the delays, in ticks, one drawn an episode; `rows` of training."""

    late: tuple[int, ...]
    rows: int = 24_576


ARMS = {
    "on time": Lateness((0,)),
    "2 ticks late": Lateness((2,)),
    "0 to 3 ticks, drawn": Lateness((0, 1, 2, 3)),
}
FLOWN = (0, 1, 2, 3)


def text(state: Sequence[float]) -> str:
    """Hundredths, of the angle thousandths."""
    parts = zip(("x", "v", "angle", "spin"), state, (100, 100, 1000, 100), strict=True)
    return " ".join(f"{name} {max(-NUMBERS, min(NUMBERS, round(value * scale)))}" for name, value, scale in parts)


def expert(state: Sequence[float]) -> Call:
    """Against where the pole falls, and slowly back to the middle."""
    x, v, angle, spin = state
    return CALLS[int(angle + 0.3 * spin + 0.03 * x + 0.06 * v > 0)]


def demonstrations(seed: int, lateness: Lateness) -> Iterator[Row]:
    """Rows for ever, of worlds side by side under the expert and bursts of random pushes."""
    rng = Random(f"{seed} {lateness.late}")
    worlds = [_Flight(Random(rng.random()), lateness) for _ in range(WORLDS)]
    while True:
        for world in worlds:
            yield from world.tick()


class _Flight:
    def __init__(self, rng: Random, lateness: Lateness) -> None:
        self._rng, self._lateness, self._world = rng, lateness, gymnasium.make("CartPole-v1").unwrapped
        self._begin()

    def _begin(self) -> None:
        rng = self._rng
        self._state: Sequence[float] = self._world.reset(seed=rng.randrange(1_000_000, 2_000_000))[0]
        self._late, self._burst, self._left = rng.choice(self._lateness.late), 0, rng.randint(20, TICKS)
        self._seen: deque[str] = deque(maxlen=self._late + 1)
        self._called: deque[str] = deque(maxlen=HISTORY)

    def tick(self) -> Iterator[Row]:
        rng, right = self._rng, expert(self._state)
        self._seen.append(text(self._state))
        if len(self._seen) > self._late:
            yield Row(TOLD, self._seen[0], right, tuple(self._called))
        if not self._burst and rng.random() < NOISE:
            self._burst = rng.randint(1, BURST)
        if self._burst:
            self._burst -= 1
            right = rng.choice(CALLS)
        self._called.append(right.text())
        self._state, over = step(self._world, right)
        self._left -= 1
        if over or not self._left:
            self._begin()


def step(world: Any, call: Call) -> tuple[Sequence[float], bool]:
    """A tick under a call: the state then, and whether the episode is over."""
    for _ in range(PHYSICS):
        state, _, over, _, _ = world.step(CALLS.index(call))
        if over:
            break
    return state, over


def run(lateness: Lateness, seed: int, folder: Path, episodes: int = 20) -> dict[str, Any]:
    """Train, then fly at each of `FLOWN`: the ticks of each episode."""
    tokenizer = vocabulary()
    wrapped = STTokenizer(tokenizer)
    template = PromptTemplate(COMPACT, wrapped, "the compact profile")
    encoder = RowEncoder(template, wrapped, compile_plan(tool_schemas(TOOLS), wrapped))
    model = prepare(new_model(SHAPE, tokenizer, seed), tokenizer)

    def source(chunk: int) -> list[Row]:
        return list(itertools.islice(demonstrations(seed * 1_000_003 + chunk, lateness), 4_096))

    trainer = Trainer(
        model, encoder, source, TrainConfig(lateness.rows, seed, run=1, learning_rate=2e-3, bf16=True), folder
    )
    trainer.run()
    decide = TreeDecider(model, encoder)
    ticks = {str(late): fly(decide, late, episodes) for late in FLOWN}
    asked = {"lateness": asdict(lateness), "seed": seed, "parameters": model.num_parameters()}
    return {**asked, "seconds": round(trainer.seconds, 1), "ticks": ticks}


def vocabulary() -> Tokenizer:
    """Words of tool, instruction and observation, and the numbers."""
    numbers = [str(n) for n in range(-NUMBERS, NUMBERS + 1)]
    return build_tokenizer([tools_text(tool_schemas(TOOLS)), TOLD, text((0, 0, 0, 0)), CALLS[0].text()], numbers)


def fly(decide: TreeDecider | None, late: int, episodes: int) -> list[int]:
    """How many ticks each episode stood whose calls act `late` ticks after what they were decided by; seeds 0, 1, ...
    Until the first call acts nothing is known better than to push left and right by turns. Without a model the expert
    decides."""
    worlds = [gymnasium.make("CartPole-v1").unwrapped for _ in range(episodes)]
    states: list[Sequence[float]] = [world.reset(seed=i)[0] for i, world in enumerate(worlds)]
    called = [deque(CALLS[i % 2] for i in range(HISTORY + max(FLOWN))) for _ in worlds]
    stood, flying = [TICKS] * episodes, list(range(episodes))
    for tick in range(TICKS):
        shown = [tuple(call.text() for call in list(called[i])[-HISTORY:]) for i in flying]
        seen = [Row(TOLD, text(states[i]), None, history) for i, history in zip(flying, shown, strict=True)]
        made = decide(seen) if decide else [expert(states[i]) for i in flying]
        for i, call in zip(list(flying), made, strict=True):
            assert isinstance(call, Call), "every call is legal"
            called[i].append(call)
            states[i], over = step(worlds[i], called[i][-1 - late])
            if over:
                stood[i] = tick + 1
                flying.remove(i)
        if not flying:
            break
    return stood
