"""The answers to rows: who gives them (a checkpoint by its heads, or an endpoint), and the file that keeps them.

The file's first line says who answers, and which rows. Then one line for each answer, in the order in which they came.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from rtcontrol.hosts.protocol import Decider, DecisionLost, DecisionRequest
from rtcontrol.hosts.remote_api import EndpointSource, is_chat, is_endpoint
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.data.row import DataRow, json_lines
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.weights import fingerprint
from rtcontrol.run.api import Model, ModelSession

FORMAT = 1
KEY = "rtcontrol_predictions"
KNOWN = ("ms", "passes", "tokens", "error")
OPEN = 8  # sets of tools whose prefixes are kept: rows of one set mostly come together
HISTORY = 6
ROW_LOSSES = ("malformed", "refused")  # of one row: the others may be answered all the same
T = TypeVar("T")


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

    @classmethod
    def of(cls, row: DataRow, decision: Decision, since_s: float, tokens: int) -> Self:
        """Return the answer that a decision is, which was asked for at `since_s` of `time.perf_counter`."""
        calls = () if decision.call is None else (decision.call,)
        ms = (time.perf_counter() - since_s) * 1e3
        return cls(row.id, calls, decision.confidence, ms, decision.forward_passes, tokens)

    def to_dict(self) -> dict[str, Any]:
        """Return it as it is written. What is not known is left out."""
        known = {name: value for name in KNOWN if (value := getattr(self, name)) is not None}
        return {
            "id": self.id,
            "calls": [call.to_dict() for call in self.calls],
            "confidence": {name: round(value, 6) for name, value in self.confidence.items()},
            **known,
        }

    @classmethod
    def from_dict(cls, value: Any, where: str) -> Self:
        """Raises UserError for what is not an answer."""
        try:
            calls = tuple(Call.from_dict(call) for call in value["calls"])
            return cls(value["id"], calls, value.get("confidence", {}), **{name: value.get(name) for name in KNOWN})
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{where}: it is no answer to a row ({error!r}).", "Give another file.") from None


class Answerer(Protocol):
    """Answers one row after the other. `about` says who answers: answers of others are not mixed with its own."""

    about: Mapping[str, Any]

    def answer(self, row: DataRow) -> Prediction:
        """Return the answer; one that failed has an error. Raises UserError where no row can be answered."""

    def forget(self) -> None:
        """Forget what was answered so far: prefixes, and calls that are guessed again."""


class Opened(OrderedDict[str, T]):
    """What was opened for each set of tools, the latest ones. The rest is closed."""

    def of(self, tools: Sequence[Mapping[str, Any]], make: Callable[[], T]) -> T:
        key = json.dumps(tools)
        if key in self:
            self.move_to_end(key)
            return self[key]
        while len(self) >= OPEN:
            self.popitem(last=False)
        self[key] = made = make()
        return made


class HeadsAnswerer:
    """Decides each row's call in a session for its tools."""

    def __init__(
        self, model: str, engine: str, dtype: str, device: str | None, threads: int | None, value_tokens: int
    ) -> None:
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
        self._model = Model(model, dtype, device, threads, engine)
        self._sessions = Opened[ModelSession]()

    def answer(self, row: DataRow) -> Prediction:
        try:
            session = self._sessions.of(row.tools, lambda: self._session(row.tools))
            since_s = time.perf_counter()
            decision = session.decide(row.observation, row.instruction, list(row.history))
        except UserError as error:
            return Prediction(row.id, (), error=f"refused: {error.what}")
        except DecodeError as error:
            return Prediction(row.id, (), error=f"no legal call: {error}")
        return Prediction.of(row, decision, since_s, decision.tokens)

    def forget(self) -> None:
        self._sessions.clear()

    def _session(self, tools: Sequence[Mapping[str, Any]]) -> ModelSession:
        return self._model.session(list(tools), value_tokens=self._value_tokens, untrained=True)


class RemoteAnswerer:
    """An endpoint that decides: `decisions:`, `systemone:` or `chat:`, then URL#NAME. Rows that it cannot take, and
    answers that cannot be read, count as wrong. Any other failure ends the run."""

    def __init__(self, name: str) -> None:
        self._name = name
        EndpointSource.parse(name, [{"name": "look"}])  # a wrong address is refused before the first request
        self.about: Mapping[str, Any] = {"name": name}
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
        since_s = time.perf_counter()
        try:
            decision = decider.decide(DecisionRequest(0, 0, row.observation, row.instruction, row.history[-HISTORY:]))
        except DecisionLost as lost:
            if lost.loss in ROW_LOSSES or str(lost).startswith("HTTP 400"):
                return Prediction(row.id, (), error=f"{lost.loss}: {lost}")
            raise UserError(
                f"{self._name} does not answer ({lost.loss}: {lost}).",
                "What was answered is kept (--out): see that it runs, and give the same command again.",
            ) from None
        return Prediction.of(row, decision, since_s, decision.tokens + decision.reused_tokens)


def is_remote(model: str) -> bool:
    """Return whether a model's name is that of an endpoint."""
    return is_endpoint(model) or is_chat(model)


def digest(rows: Sequence[DataRow]) -> str:
    """Return the same for the same rows in the same order."""
    made = hashlib.sha256()
    for row in rows:
        made.update(json.dumps(row.to_dict(), sort_keys=True, ensure_ascii=False).encode() + b"\n")
    return made.hexdigest()[:16]


class Predictions:
    """The answers so far, by row (`answers`). With a `path` each is in the file as soon as it is added.

    `head` has who answers (`model`), and what (`data`). A file with another head stays as it is: UserError.
    """

    def __init__(self, head: Mapping[str, Any], path: Path | None) -> None:
        self.head, self.path = json.loads(json.dumps(head)), path
        self.answers: dict[str, Prediction] = {}
        self._file: FileIO | None = None
        if path is not None and path.exists() and (not path.is_file() or path.stat().st_size):
            self.answers = _kept(path, self.head)

    def add(self, one: Prediction) -> None:
        """Raises UserError where it cannot be written, as on a full disk: what was there stays."""
        self.answers[one.id] = one
        if self.path is None:
            return
        try:
            if self._file is None:
                self._file = self._opened(self.path)
            _write(self._file, one.to_dict())
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written ({error.strerror}); {len(self.answers) - 1} answers are kept.",
                "Make room, and give the same command again: it resumes there.",
            ) from None

    def _opened(self, path: Path) -> FileIO:
        """Open it without a buffer: what a full disk does not take is not tried again when it is closed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab", buffering=0)
        if not path.stat().st_size:
            _write(file, {KEY: FORMAT, **self.head})
        return file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _kept(path: Path, head: Mapping[str, Any]) -> dict[str, Prediction]:
    """Return a file's answers. A last line that was not finished is cut: its answer comes again. Raises UserError."""
    whole = path.read_bytes() if path.is_file() else b""
    try:
        had = json.loads(whole.partition(b"\n")[0])
    except (ValueError, RecursionError):
        had = None
    if not isinstance(had, dict) or had.get(KEY) != FORMAT:
        raise UserError(f"{path} holds no answers of an evaluation.", "Give a file that `rtcontrol eval --out` wrote.")
    for part in head:
        mine, other = head[part], had.get(part) or {}
        # The same rows may be read from another place.
        if keys := [k for k in mine if k != "source" and mine[k] != other.get(k)]:
            shown = ", ".join(f"{k} {other.get(k)!r}, not {mine[k]!r}" for k in keys)
            raise UserError(f"{path} holds answers of another {part}: {shown}.", "Give another --out.")
    if not whole.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(whole.rfind(b"\n") + 1)
    kept = (Prediction.from_dict(value, f"{path}:{line}") for line, value in json_lines(path) if line > 1)
    return {one.id: one for one in kept}


def _write(file: FileIO, value: Any) -> None:
    left = memoryview((json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode())
    while left:
        left = left[file.write(left) :]
