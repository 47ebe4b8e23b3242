"""Decide recorded observations again, with another model, and compare tick by tick."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rtcontrol.agents import Agent, Fallback, Tools
from rtcontrol.hosts.deciders import PLAIN, answer, build
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.checkpoint import zoo
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.run.model_compatibility import has_heads, model_for
from rtcontrol.telemetry.histogram import Series
from rtcontrol.telemetry.record_reader import read_record, record_in

MORE = "Record one with `rtcontrol run --record-observations yes` (the default), and give its record.mcap."


@dataclass(frozen=True, slots=True)
class Seen:
    """One observation that was decided, as its `request`. `call`: what was decided then (as text, `null` for the null
    function; None where the tick missed without a decision)."""

    t_s: float
    request: DecisionRequest
    call: str | None


@dataclass(frozen=True, slots=True)
class Recording:
    """A record's header, and its observations in the order of their ticks (at least one). `whole`: it has an end."""

    path: Path
    header: Mapping[str, Any]
    seen: tuple[Seen, ...]
    whole: bool

    @property
    def recorded_model(self) -> bool:
        """Whether the model that decided is one of this installation's. Any other name is an address, a hub's id or a
        path that stands in a file which others may have written: it is never gone to for that."""
        return self.header["model"] in (*PLAIN, *zoo())

    def model(self, asked: str | None) -> str:
        """The model that decides it again: the one asked for, or else the recorded one. UserError where that is named
        by the record alone."""
        if asked or self.recorded_model:
            return asked or str(self.header["model"])
        told = repr(str(self.header["model"])[:200])
        raise UserError(
            f"{self.path} names the model that decided it, {told}. A name in a file is not obeyed: it may be anybody's "
            "address or folder, and would be sent what is seen, and your key.",
            f"If you trust it, say it yourself: --model {told}. Or give another, such as --model random.",
        )

    def agent(self) -> Agent:
        """Return who decided, with the same tools; without a model where that is named by the record alone."""
        header = self.header
        return Agent(
            name=str(header["agent"]),
            description=f"The agent of the recording {self.path}.",
            tools=Tools(header["tools"]),
            observe=lambda data: "",  # the recorded text is decided by
            instruction=self.seen[0].request.instruction,
            fallback=Fallback(hold_ms=float(header["hold_ms"])),
            model=str(header["model"]) if self.recorded_model else "",
            history=int(header["history"]),
            allow_null=bool(header["allow_null"]),
        )


def restored(value: Any) -> Any:
    """Return recorded data as the world gave it: a record has infinite numbers and NaN as texts."""
    if isinstance(value, dict):
        return {key: restored(one) for key, one in value.items()}
    if isinstance(value, list):
        return [restored(one) for one in value]
    return float(value) if isinstance(value, str) and value in ("inf", "-inf", "nan") else value


def _seen(k: int, look: Mapping[str, Any], header: Mapping[str, Any], call: str | None) -> Seen:
    request = DecisionRequest(
        k,  # what is random by the tick's number is the same again
        look["epoch"],
        look["observation"],
        look["instruction"],
        tuple(look["history"]),
        restored(look.get("data")),
        standing=Call.from_dict(look["in_force"]["call"]) if "in_force" in look else None,
    )
    return Seen(k / header["hz"] if header["clock"] == "lockstep" else float(look["t_s"]), request, call)


def recording(path: Path) -> Recording:
    """Return the recording of a file. UserError for what cannot be read, is not ours, or has no observations."""
    header: dict[str, Any] = {}
    looks: dict[int, dict[str, Any]] = {}
    decided: dict[int, str] = {}
    record, whole = record_in(path), False
    try:
        for event in read_record(record):
            if "observation" in event:
                looks[event["k"]] = event
            elif event.get("kind") == "null":
                decided[event["k"]] = "null"
            elif "kind" in event and "call" in event:
                decided[event["k"]] = event["call"]
            header = event.get("header", header)
            whole = whole or "end" in event
        if not looks or "tools" not in header:
            raise UserError(f"{record} has no observations: there is nothing to decide again.", MORE)
        seen = tuple(_seen(k, look, header, decided.get(k)) for k, look in sorted(looks.items()))
        made = Recording(record, header, seen, whole)
        made.agent()
        return made
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{record} is no record of a run ({type(error).__name__}: {error}).", MORE) from error


@dataclass(frozen=True, slots=True)
class Redecision:
    """One decision made again. `call` is None where the decider failed, with its `error`."""

    seen: Seen
    call: str | None
    error: str | None
    decide_ns: int

    @property
    def same(self) -> bool | None:
        """Whether it is the call that was decided then; None where none was."""
        return None if self.seen.call is None else self.call == self.seen.call

    def to_dict(self) -> dict[str, Any]:
        request = self.seen.request
        told = {"k": request.tick, "t_s": self.seen.t_s, "observation": request.observation, "error": self.error}
        return {**told, "recorded": self.seen.call, "replayed": self.call}


def replay(
    recording: Recording,
    model: str | None = None,
    progress: Callable[[int], None] = lambda done: None,
    own: Agent | None = None,
) -> tuple[dict[str, Any], list[Redecision]]:
    """The comparison, and each decision. Nothing here waits for a clock, and each decision has the history that was
    recorded: two replays differ in `decide_ms` alone. The expert is that of the agent `own`, where it has one.
    UserError for a model that cannot decide this, and for one that the record alone names."""
    header, agent = recording.header, recording.agent()
    if own is not None:
        agent = replace(agent, goals=own.goals, expert=own.expert)
    chosen = model_for(agent.tools.schemas, recording.model(model))
    config = RunConfig(
        env=str(header["env"]),
        engine=str(header["engine"]),
        dtype=str(header["dtype"]),
        seed=int(header["seed"]),
        hz=float(header["hz"]),
        hysteresis=header.get("hysteresis") if has_heads(chosen) else None,
    )
    decider = build(assembly.decider(config, agent, chosen))
    made: list[Redecision] = []
    answer(decider, recording.seen[0].request)  # what is made at the first decision is no tick's time
    for seen in recording.seen:
        reply = answer(decider, seen.request)
        decided = reply.decision
        text = None if decided is None else "null" if decided.call is None else decided.call.text()
        made.append(Redecision(seen, text, reply.error, reply.decide_ns))
        progress(len(made))
    return _compared(recording, chosen, made), made


def _compared(recording: Recording, chosen: str, made: Sequence[Redecision]) -> dict[str, Any]:
    header, hz = recording.header, float(recording.header["hz"])
    compared = [one for one in made if one.same is not None]
    errors = Counter(one.error for one in made if one.error is not None)
    agreed = sum(bool(one.same) for one in compared)
    return {
        "file": str(recording.path),
        "whole": recording.whole,
        "recorded": {name: header[name] for name in ("agent", "model", "hz", "engine")},
        "replayed": {"model": chosen, "hz": hz},
        "decisions": len(made),
        "compared": len(compared),
        "agreed": agreed,
        "agreement": round(agreed / len(compared), 6) if compared else None,
        "errors": sum(errors.values()),
        "commonest_error": next((error for error, _ in errors.most_common(1)), None),
        "differing": [one.to_dict() for one in compared if not one.same],
        "decide_ms": Series(one.decide_ns / 1e6 for one in made).summary(),
        "above_period": sum(one.decide_ns / 1e9 > 1 / hz for one in made),
    }
