"""Make the decisions of a recorded run again, perhaps with another model, and compare them tick by tick."""

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

HINT = "Record a run with `record.observations=yes` (the default), and give its record.mcap."


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """The request of a recorded tick with its observation, and the recorded decision `call` as text.
    `call` is `null` for the null function (no new call), and None if the tick missed without a decision."""

    t_s: float
    request: DecisionRequest
    call: str | None


@dataclass(frozen=True, slots=True)
class Recording:
    """A record's header and decisions in the order of ticks. `whole` is false if the record was cut short."""

    path: Path
    header: Mapping[str, Any]
    decisions: tuple[RecordedDecision, ...]
    whole: bool

    def model(self, named: str | None) -> str:
        """Return the model `named`, or by default the recorded model. Raises UserError if the recorded model is not
        bundled: its name, which may be an address or a path, comes from a file and is not trusted."""
        recorded = str(self.header["model"])
        if named is None and recorded not in (*SCRIPTED, *bundled_models()):
            name = repr(recorded[:200])
            what = f"{self.path} was recorded with the model {name}, which is not bundled, so it is not loaded."
            raise UserError(what, f"If you trust this model, give --model {name}; or another, such as random.")
        return named or recorded

    def agent(self) -> Agent:
        """Return an agent with the recorded name, tools, instruction and history, but without a model."""
        header = self.header
        return Agent(
            name=str(header["agent"]),
            description=f"The agent of the recording {self.path}.",
            tools=Tools(header["tools"]),
            observe=lambda data: "",  # not used, since the record has the observation's text
            instruction=self.decisions[0].request.instruction,
            fallback=Fallback(hold_ms=float(header["hold_ms"])),
            model="",
            history=int(header["history"]),
            allow_null=bool(header["allow_null"]),
        )


def read_recording(path: Path) -> Recording:
    """Read a run's header and decisions from its record. Raises UserError if the record has no observations."""
    header: dict[str, Any] = {}
    observed: dict[int, dict[str, Any]] = {}
    decided: dict[int, str] = {}
    record, whole = record_path(path), False
    try:
        for event in read_record(record):
            if "observation" in event:
                observed[event["k"]] = event
            elif event.get("kind") == "null":
                decided[event["k"]] = "null"
            elif "kind" in event and "call" in event:
                decided[event["k"]] = event["call"]
            header = event.get("header", header)
            whole = whole or "end" in event
        if not observed or "tools" not in header:
            raise UserError(f"{record} has no observations, so its decisions cannot be made again.", HINT)
        decisions = tuple(_decision_of(k, event, header, decided.get(k)) for k, event in sorted(observed.items()))
        result = Recording(record, header, decisions, whole)
        result.agent()
        return result
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{record} is not a record of a run ({type(error).__name__}: {error}).", HINT) from error


def _decision_of(k: int, event: Mapping[str, Any], header: Mapping[str, Any], call: str | None) -> RecordedDecision:
    request = DecisionRequest(
        k,  # the recorded tick number, since it seeds random choices
        event["epoch"],
        event["observation"],
        event["instruction"],
        tuple(event["history"]),
        _restore_numbers(event.get("data")),
        active_call=Call.from_dict(event["in_force"]["call"]) if "in_force" in event else None,
    )
    return RecordedDecision(k / header["hz"] if header["clock"] == "lockstep" else float(event["t_s"]), request, call)


def _restore_numbers(value: Any) -> Any:
    """Return recorded data with infinite numbers and NaN as floats, since a record has them as texts."""
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
    """Make all decisions again. Return a summary of the comparison, and a list with both calls of each decision.

    A call `recorded` is None if the tick missed, and `replayed` is None if there was an `error`. A replay has no clock,
    and uses the recorded history, so two replays differ only in `decide_ms`. `expert_agent` supplies the expert of the
    model `expert`. Raises UserError if the model cannot decide with these tools, or as `Recording.model` does.
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
    reply_of(decider, recording.decisions[0].request)  # warm-up: the first decision includes the setup
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
