"""Decides recorded observations again, with another model, and compares tick by tick."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.hosts.deciders import answer, build, describe
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.run.model_compatibility import hysteresis_for, model_for
from rtcontrol.run.recording import Recording, Seen
from rtcontrol.telemetry.histogram import Series


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
        told = {"k": self.seen.k, "t_s": self.seen.t_s, "observation": self.seen.observation}
        more = {} if self.error is None else {"error": self.error}
        return {**told, "recorded": self.seen.call, "replayed": self.call, **more}


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
        dtype=str(header.get("dtype", "auto")),  # older records have none
        seed=int(header["seed"]),
        hz=float(header["hz"]),
        hysteresis=_hysteresis(header.get("hysteresis"), chosen),
    )
    decider = build(assembly.decider(config, agent, chosen))
    made: list[Redecision] = []
    answer(decider, _request(recording.seen[0]))  # what is made at the first decision is no tick's time
    for seen in recording.seen:
        reply = answer(decider, _request(seen))
        decided = reply.decision
        text = None if decided is None else "null" if decided.call is None else decided.call.text()
        made.append(Redecision(seen, text, reply.error, reply.decide_ns))
        progress(len(made))
    compared = [one for one in made if one.same is not None]
    errors = Counter(one.error for one in made if one.error is not None)
    agreed = sum(bool(one.same) for one in compared)
    period_ms = 1e3 / config.hz
    return {
        "file": str(recording.path),
        "whole": recording.whole,
        "recorded": {name: header[name] for name in ("agent", "model", "hz")} | {"engine": recording.engine},
        "replayed": {"model": chosen, "engine": describe(decider).get("engine", config.engine), "hz": config.hz},
        "decisions": len(made),
        "compared": len(compared),
        "agreed": agreed,
        "agreement": round(agreed / len(compared), 6) if compared else None,
        "errors": sum(errors.values()),
        "commonest_error": max(errors, key=lambda error: errors[error], default=None),
        "differing": [one.to_dict() for one in compared if not one.same],
        "decide_ms": Series(one.decide_ns / 1e6 for one in made).summary(),
        "above_period": sum(one.decide_ns / 1e6 > period_ms for one in made),
    }, made


def _hysteresis(recorded: str | None, model: str) -> str | None:
    """The recorded one, of a model that can have one."""
    try:
        return recorded if hysteresis_for(recorded, model) is not None else None
    except UserError:
        return None


def _request(seen: Seen) -> DecisionRequest:
    # The number of the tick is the recorded one's: what is random by it is the same again.
    asked = seen.k, seen.epoch, seen.observation, seen.instruction, seen.history, seen.data
    return DecisionRequest(*asked, standing=seen.standing)
