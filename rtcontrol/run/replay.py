"""Decide again for each tick of a recorded run, perhaps with another model, and compare the decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rtcontrol.agents import Agent, Fallback, Tools
from rtcontrol.hosts.deciders import SCRIPTED, build_decider, reply_of
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.checkpoint import bundled_models
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.run.model_compatibility import has_heads, model_for
from rtcontrol.telemetry.histogram import Histogram
from rtcontrol.telemetry.record_reader import read_record, record_path

HINT = "Record a run with `record.observations=yes` (the default), and specify its record.mcap."


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """A recorded tick's decision request, which has its observation, and the decided `call` as text. `call` is `null`
    if the decision was to keep the active call, and None if the tick missed without a decision."""

    t_s: float
    request: DecisionRequest
    call: str | None


@dataclass(frozen=True, slots=True)
class Recording:
    """A record's header and its decisions in the order of ticks. `whole` is False if the record is truncated."""

    path: Path
    header: Mapping[str, Any]
    decisions: tuple[RecordedDecision, ...]
    whole: bool

    def model(self, named: str | None) -> str:
        """Return the model `named`, or the recorded model if `named` is None. Raises UserError if the recorded model is
        not bundled, because a name from a file is not trusted: it may be an address or a path."""
        recorded = str(self.header["model"])
        if named is None and recorded not in (*SCRIPTED, *bundled_models()):
            name = repr(recorded[:200])
            what = f"{self.path} was recorded with the model {name}, which is not bundled, so it is not loaded."
            raise UserError(what, f"If you trust this model, give --model {name}; or another, such as random.")
        return named or recorded

    def agent(self) -> Agent:
        """Return an agent with the recorded name, tools, instruction and history length, but without a model."""
        header = self.header
        return Agent(
            name=str(header["agent"]),
            description=f"The agent of the recording {self.path}.",
            tools=Tools(header["tools"]),
            observe=lambda data: "",  # not used, because the record has the observation's text
            instruction=self.decisions[0].request.instruction,
            fallback=Fallback(hold_ms=float(header["hold_ms"])),
            model="",
            history=int(header["history"]),
            allow_null=bool(header["allow_null"]),
        )


def read_recording(path: Path) -> Recording:
    """Read the header and decisions of a run's record. Raises UserError if the record has no observations."""
    header: dict[str, Any] = {}
    observed: dict[int, dict[str, Any]] = {}
    calls: dict[int, str] = {}
    record, whole = record_path(path), False
    try:
        for event in read_record(record):
            if "observation" in event:
                observed[event["k"]] = event
            elif event.get("kind") == "null":
                calls[event["k"]] = "null"
            elif "kind" in event and "call" in event:
                calls[event["k"]] = event["call"]
            header = event.get("header", header)
            whole = whole or "end" in event
        if not observed or "tools" not in header:
            raise UserError(f"{record} has no observations, so its decisions cannot be replayed.", HINT)
        decisions = tuple(_build_decision(k, event, header, calls.get(k)) for k, event in sorted(observed.items()))
        result = Recording(record, header, decisions, whole)
        result.agent()
        return result
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{record} is not a record of a run ({type(error).__name__}: {error}).", HINT) from error


def _build_decision(k: int, event: Mapping[str, Any], header: Mapping[str, Any], call: str | None) -> RecordedDecision:
    request = DecisionRequest(
        k,  # the recorded tick number, because it seeds random decisions
        event["epoch"],
        event["observation"],
        event["instruction"],
        tuple(event["history"]),
        _restore_numbers(event.get("data")),
        active_call=Call.from_dict(event["in_force"]["call"]) if "in_force" in event else None,
    )
    return RecordedDecision(k / header["hz"] if header["clock"] == "lockstep" else float(event["t_s"]), request, call)


def _restore_numbers(value: Any) -> Any:
    """Return recorded data in which the texts `inf`, `-inf` and `nan` are floats again."""
    if isinstance(value, dict):
        return {key: _restore_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_restore_numbers(inner) for inner in value]
    return float(value) if isinstance(value, str) and value in ("inf", "-inf", "nan") else value


def replay(
    recording: Recording,
    model: str | None = None,
    progress: Callable[[int], None] = lambda done: None,
    expert_agent: Agent | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Decide again for each recorded tick. Return a summary of the comparison, and a list of all ticks with both calls.

    `recorded` is None if the tick missed, and `replayed` is None if there was an `error`. Only `decide_ms` differs
    between two replays, because a replay has no clock and uses the recorded history. `expert_agent` supplies the expert
    if the model is `expert`. Raises UserError if the model cannot decide with these tools, or is not trusted.
    """
    header, agent = recording.header, recording.agent()
    if expert_agent is not None:
        agent = replace(agent, goals=expert_agent.goals, expert=expert_agent.expert)
    chosen = model_for(agent.tools.schemas, recording.model(model))
    config = RunConfig(
        env=str(header["env"]),
        engine=str(header["engine"]),
        dtype=str(header["dtype"]),
        seed=int(header["seed"]),
        hz=float(header["hz"]),
        hysteresis=header.get("hysteresis") if has_heads(chosen) else None,
    )
    decider = build_decider(assembly.decider_source(config, agent, chosen))
    decisions, decide_ms = list[dict[str, Any]](), list[float]()
    reply_of(decider, recording.decisions[0].request)  # warm-up: the first decision takes longer
    for recorded in recording.decisions:
        reply, request = reply_of(decider, recorded.request), recorded.request
        tick = {"k": request.tick, "t_s": recorded.t_s, "instruction": request.instruction}
        call = None if reply.decision is None else "null" if reply.decision.call is None else reply.decision.call.text()
        calls = {"recorded": recorded.call, "replayed": call, "error": reply.error}
        decisions.append({**tick, "observation": request.observation, **calls})
        decide_ms.append(reply.decide_ns / 1e6)
        progress(len(decisions))
    return {
        "file": str(recording.path),
        "whole": recording.whole,
        "recorded": {name: header[name] for name in ("agent", "model", "hz", "engine")},
        "replayed": {"model": chosen, "hz": config.hz},
        **_comparison(decisions),
        "decide_ms": Histogram(decide_ms).summary(),
        "above_period": sum(ms > 1e3 / config.hz for ms in decide_ms),
    }, decisions


def _comparison(decisions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    compared = [decision for decision in decisions if decision["recorded"] is not None]
    differing = [decision for decision in compared if decision["replayed"] != decision["recorded"]]
    agreed = len(compared) - len(differing)
    errors = Counter(decision["error"] for decision in decisions if decision["error"] is not None)
    return {
        "decisions": len(decisions),
        "compared": len(compared),
        "agreed": agreed,
        "agreement": round(agreed / len(compared), 6) if compared else None,
        "errors": errors.total(),
        "commonest_error": next((error for error, _ in errors.most_common(1)), None),
        "differing": differing,
    }
