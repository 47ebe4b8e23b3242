"""What answers rows: a checkpoint by its heads (or a chat model in its own syntax), with the row's own tools."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from rtcontrol.evaluation.options import ModelOptions
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.data.compression import Tokens
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.decode.protocol import DecodeError, Runner
from rtcontrol.models.errors import UserError
from rtcontrol.models.metrics.predictions import Prediction
from rtcontrol.models.runners.prefix_store import nothing_kept
from rtcontrol.models.runners.weights import fingerprint
from rtcontrol.run.api import Model, ModelSession

OPEN = 8  # sets of tools whose prefixes are kept: rows of one set mostly come together
WAYS = ("heads", "json")
T = TypeVar("T")


class Answerer(Protocol):
    """Answers one row after the other. `told` says what it is: the same, and its answers are of one file. `tokens`
    counts by its tokenizer, where that is known."""

    told: Mapping[str, Any]
    tokens: Tokens | None

    def answer(self, row: DataRow) -> Prediction:
        """Never raises for what the row, or what answers, is like: an answer that failed has an error."""

    def forget(self) -> None:
        """What was answered so far: prefixes, and calls that are guessed again."""


class Opened(OrderedDict[str, T]):
    """What was opened for each set of tools, the latest ones; the rest is let go."""

    def of(self, tools: Sequence[Mapping[str, Any]], make: Callable[[], T]) -> tuple[T, float | None]:
        """It, and the milliseconds that it took to open (None: it was there)."""
        key = json.dumps(tools)
        if key in self:
            self.move_to_end(key)
            return self[key], None
        while len(self) >= OPEN:
            self.popitem(last=False)
        began = time.perf_counter()
        with nothing_kept():
            self[key] = found = make()
        return found, (time.perf_counter() - began) * 1e3


def loaded(options: ModelOptions) -> tuple[Checkpoint, Runner, dict[str, Any]]:
    """The checkpoint, what runs it, and what is told of them. Raises UserError."""
    if options.way not in WAYS:
        raise UserError(f"Unknown way {options.way!r} of answering.", f"Choose {' or '.join(WAYS)}.")
    spec = DeciderSpec(options.model, (), options.engine, options.dtype, options.device, options.threads)
    checkpoint, runner = spec.load()
    told = {
        "name": options.model,
        "weights": fingerprint(checkpoint.folder)[:16],
        "profile": checkpoint.template.profile,
        "way": options.way,
        "engine": options.engine,
        "device": runner.caps.device,
        "dtype": runner.caps.dtype,
        "parameters": runner.caps.parameters,
    }
    return checkpoint, runner, told


class HeadsAnswerer:
    """Decides each row's call in a session for its tools."""

    def __init__(self, options: ModelOptions) -> None:
        checkpoint, self._runner, told = loaded(options)  # held: sessions of the same weights share it
        self.tokens: Tokens | None = Tokens(checkpoint.folder)
        self.told: Mapping[str, Any] = {**told, "value_tokens": options.value_tokens, "arguments": options.arguments}
        self._options = options
        self._model = Model(options.model, options.dtype, options.device, options.threads, options.engine)
        self._sessions = Opened[ModelSession]()

    def answer(self, row: DataRow) -> Prediction:
        try:
            session, opening_ms = self._sessions.of(row.tools, lambda: self._session(row.tools))
        except UserError as error:
            return Prediction(row.id, (), error=f"refused: {error.what}")
        began = time.perf_counter()
        try:
            found = session.decide(row.observation, row.instruction, list(row.history))
        except UserError as error:
            return Prediction(row.id, (), opening_ms=opening_ms, error=f"refused: {error.what}")
        except DecodeError as error:
            return Prediction(row.id, (), opening_ms=opening_ms, error=f"no legal call: {error}")
        return Prediction(
            row.id,
            () if found.call is None else (found.call,),
            found.confidence,
            (time.perf_counter() - began) * 1e3,
            opening_ms,
            found.forward_passes,
            found.tokens,
        )

    def forget(self) -> None:
        self._sessions.clear()

    def _session(self, tools: Sequence[Mapping[str, Any]]) -> ModelSession:
        options = self._options
        return self._model.session(
            list(tools), value_tokens=options.value_tokens, arguments=options.arguments, untrained=True
        )
