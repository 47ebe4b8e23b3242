"""The answers to rows: a checkpoint gives them by its heads, or a chat model in its own syntax."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.prefix_store import nothing_kept
from rtcontrol.models.runners.weights import fingerprint
from rtcontrol.run.api import Model, ModelSession

KNOWN = ("ms", "passes", "tokens", "error")
OPEN = 8  # sets of tools whose prefixes are kept: rows of one set mostly come together


@dataclass(frozen=True)
class Prediction:
    """The answer to one row: its calls (none: the call in force stays, or `error` says why there is none), the
    `confidence` of each head, milliseconds from request to call, forward passes, and tokens through the model."""

    id: str
    calls: tuple[Call, ...]
    confidence: Mapping[str, float] = field(default_factory=dict)
    ms: float | None = None
    passes: int | None = None
    tokens: int | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as it is written. What is not known is left out."""
        known = {name: value for name in KNOWN if (value := getattr(self, name)) is not None}
        return {
            "id": self.id,
            "calls": [call.to_dict() for call in self.calls],
            "confidence": {name: round(value, 6) for name, value in self.confidence.items()},
            **known,
        }


class Answerer(Protocol):
    """Answers one row after the other."""

    def answer(self, row: DataRow) -> Prediction:
        """Return the answer; one that failed has an error."""

    def forget(self) -> None:
        """Forget what was answered so far: prefixes, and calls that are guessed again."""


class HeadsAnswerer:
    """Decides each row's call in a session for its tools. `about` says what answers."""

    def __init__(
        self, model: str, engine: str, dtype: str, device: str | None, threads: int | None, value_tokens: int
    ) -> None:
        self._model = Model(model, dtype, device, threads, engine)
        checkpoint, self._runner = DeciderSpec(model, (), engine, dtype, device, threads).load()
        caps = self._runner.caps  # held: sessions of the same weights share the runner
        self.about: Mapping[str, Any] = {
            "name": model,
            "weights": fingerprint(checkpoint.folder)[:16],
            "profile": checkpoint.template.profile,
            "engine": engine,
            "device": caps.device,
            "dtype": caps.dtype,
            "parameters": caps.parameters,
            "value_tokens": value_tokens,
        }
        self._value_tokens = value_tokens
        self._sessions: OrderedDict[str, ModelSession] = OrderedDict()

    def answer(self, row: DataRow) -> Prediction:
        try:
            session = self._session(row.tools)
            since_s = time.perf_counter()
            made = session.decide(row.observation, row.instruction, list(row.history))
        except UserError as error:
            return Prediction(row.id, (), error=f"refused: {error.what}")
        except DecodeError as error:
            return Prediction(row.id, (), error=f"no legal call: {error}")
        ms = (time.perf_counter() - since_s) * 1e3
        calls = () if made.call is None else (made.call,)
        return Prediction(row.id, calls, made.confidence, ms, made.forward_passes, made.tokens)

    def forget(self) -> None:
        self._sessions.clear()

    def _session(self, tools: Sequence[Mapping[str, Any]]) -> ModelSession:
        """Return the session for these tools, one of the latest or a new one."""
        key = json.dumps(tools)
        if key in self._sessions:
            self._sessions.move_to_end(key)
            return self._sessions[key]
        while len(self._sessions) >= OPEN:
            self._sessions.popitem(last=False)
        with nothing_kept():  # on disk: none of these tools comes again
            made = self._model.session(list(tools), value_tokens=self._value_tokens, untrained=True)
        self._sessions[key] = made
        return made
