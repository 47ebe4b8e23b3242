"""What answers rows: a checkpoint by its heads (or a chat model in its own syntax), or an endpoint, with the row's own
tools."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from rtcontrol.evaluation.predictions import Prediction
from rtcontrol.hosts.protocol import Decider, DecisionLost, DecisionRequest
from rtcontrol.hosts.remote_api import EndpointSource, is_chat, is_endpoint
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.weights import fingerprint
from rtcontrol.run.api import Model, ModelSession

OPEN = 8  # sets of tools whose prefixes are kept: rows of one set mostly come together
HISTORY = 6
OWN_LOSSES = ("malformed", "refused")  # of the row: other rows may be answered all the same
T = TypeVar("T")


class Answerer(Protocol):
    """Answers one row after the other. `told` says what it is: the same, and its answers are of one file."""

    told: Mapping[str, Any]

    def answer(self, row: DataRow) -> Prediction:
        """Never raises for what the row, or what answers, is like: an answer that failed has an error. Raises UserError
        where no row can be answered."""

    def forget(self) -> None:
        """Forget what was answered so far: prefixes, and calls that are guessed again."""


class Opened(OrderedDict[str, T]):
    """What was opened for each set of tools, the latest ones; the rest is closed."""

    def of(self, tools: Sequence[Mapping[str, Any]], make: Callable[[], T]) -> T:
        key = json.dumps(tools)
        if key in self:
            self.move_to_end(key)
            return self[key]
        while len(self) >= OPEN:
            self.popitem(last=False)
        self[key] = found = make()
        return found


class HeadsAnswerer:
    """Decides each row's call in a session for its tools."""

    def __init__(
        self, model: str, engine: str, dtype: str, device: str | None, threads: int | None, value_tokens: int
    ) -> None:
        spec = DeciderSpec(model, (), engine, dtype, device, threads)
        checkpoint, self._runner = spec.load()  # held: sessions of the same weights share it
        caps = self._runner.caps
        self.told: Mapping[str, Any] = {
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
        self._model = Model(model, dtype, device, threads, engine)
        self._sessions = Opened[ModelSession]()

    def answer(self, row: DataRow) -> Prediction:
        try:
            session = self._sessions.of(row.tools, lambda: self._session(row.tools))
            began = time.perf_counter()
            found = session.decide(row.observation, row.instruction, list(row.history))
        except UserError as error:
            return Prediction(row.id, (), error=f"refused: {error.what}")
        except DecodeError as error:
            return Prediction(row.id, (), error=f"no legal call: {error}")
        calls, ms = () if found.call is None else (found.call,), (time.perf_counter() - began) * 1e3
        return Prediction(row.id, calls, found.confidence, ms, found.forward_passes, found.tokens)

    def forget(self) -> None:
        self._sessions.clear()

    def _session(self, tools: Sequence[Mapping[str, Any]]) -> ModelSession:
        return self._model.session(list(tools), value_tokens=self._value_tokens, untrained=True)


class RemoteAnswerer:
    """An endpoint that decides: `decisions:`, `systemone:` or `chat:`, then URL#NAME. Rows that it cannot take, and
    answers that cannot be read, count as wrong; what concerns every row (connection, HTTP error, busy) ends the run."""

    def __init__(self, name: str) -> None:
        self._name = name
        EndpointSource.parse(name, [{"name": "look"}])  # a wrong address is refused before the first request
        self.told: Mapping[str, Any] = {"name": name}
        self._deciders = Opened[Decider]()

    def forget(self) -> None:
        self._deciders.clear()

    def answer(self, row: DataRow) -> Prediction:
        tools, null = [dict(tool) for tool in row.tools], row.call is None
        try:
            decider = self._deciders.of(
                [*tools, {"null": null}], lambda: EndpointSource.parse(self._name, tools, null).build()
            )
        except UserError as error:
            return Prediction(row.id, (), error=f"refused: {error.what}")
        began = time.perf_counter()
        try:
            found = decider.decide(DecisionRequest(0, 0, row.observation, row.instruction, row.history[-HISTORY:]))
        except DecisionLost as lost:
            if lost.loss in OWN_LOSSES or str(lost).startswith("HTTP 400"):
                return Prediction(row.id, (), error=f"{lost.loss}: {lost}")
            raise UserError(
                f"{self._name} does not answer ({lost.loss}: {lost}).",
                "What was answered is kept (--out): see that it runs, and give the same command again.",
            ) from None
        calls, ms = () if found.call is None else (found.call,), (time.perf_counter() - began) * 1e3
        tokens = found.tokens + found.reused_tokens
        return Prediction(row.id, calls, found.confidence, ms, found.forward_passes, tokens)


def is_remote(model: str) -> bool:
    """Return whether a model's name is that of an endpoint."""
    return is_endpoint(model) or is_chat(model)
