"""Decide recorded observations again with another model, and compare the decisions tick by tick."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rtcontrol.agents import Agent, Fallback, Tools
from rtcontrol.hosts.deciders import SCRIPTED, answer, build_decider
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.checkpoint import bundled_models
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.run.model_compatibility import has_heads, model_for
from rtcontrol.telemetry.histogram import Histogram
from rtcontrol.telemetry.record_reader import read_record, record_path

MORE = "Record one with `record.observations=yes` (the default), and give its record.mcap."


@dataclass(frozen=True, slots=True)
class Seen:
    """A recorded decision: the `request` with the observation, and the `call` that was decided.
    `call` is a text: `null` for the null function; None if the tick missed without a decision."""

    t_s: float
    request: DecisionRequest
    call: str | None


@dataclass(frozen=True, slots=True)
class Recording:
    """A record's header and at least one observation, in the order of ticks; `whole` is false if it was cut short."""

    path: Path
    header: Mapping[str, Any]
    seen: tuple[Seen, ...]
    whole: bool

    def model(self, named: str | None) -> str:
        """Return the named model, or else the recorded model. Raises UserError if the recorded model is not bundled.
        A recorded name is not trusted: it may be an address, a hub id or a path that somebody else wrote."""
        recorded = str(self.header["model"])
        if named is None and recorded not in (*SCRIPTED, *bundled_models()):
            name = repr(recorded[:200])
            what = f"{self.path} was decided by the model {name}. A model that only a file names is not loaded."
            raise UserError(what, f"If you trust the model, write --model {name}. Else name another (--model random).")
        return named or recorded

    def agent(self) -> Agent:
        """Return the recorded agent, with the same tools but without a model."""
        header = self.header
        return Agent(
            name=str(header["agent"]),
            description=f"The agent of the recording {self.path}.",
            tools=Tools(header["tools"]),
            observe=lambda data: "",  # not used: decisions are made by the recorded text
            instruction=self.seen[0].request.instruction,
            fallback=Fallback(hold_ms=float(header["hold_ms"])),
            model="",
            history=int(header["history"]),
            allow_null=bool(header["allow_null"]),
        )


def recording(path: Path) -> Recording:
    """Return the recording in a file. Raises UserError if the file cannot be read or has no observations."""
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
            raise UserError(f"{record} has no observations: there is nothing to decide again.", MORE)
        seen = tuple(_seen(k, event, header, decided.get(k)) for k, event in sorted(observed.items()))
        result = Recording(record, header, seen, whole)
        result.agent()
        return result
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{record} is not a record of a run ({type(error).__name__}: {error}).", MORE) from error


def _seen(k: int, event: Mapping[str, Any], header: Mapping[str, Any], call: str | None) -> Seen:
    request = DecisionRequest(
        k,  # the same tick number, as it seeds random choices
        event["epoch"],
        event["observation"],
        event["instruction"],
        tuple(event["history"]),
        _restored(event.get("data")),
        active_call=Call.from_dict(event["in_force"]["call"]) if "in_force" in event else None,
    )
    return Seen(k / header["hz"] if header["clock"] == "lockstep" else float(event["t_s"]), request, call)


def _restored(value: Any) -> Any:
    """Return recorded data in the world's form; a record writes infinite numbers and NaN as texts."""
    if isinstance(value, dict):
        return {key: _restored(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_restored(inner) for inner in value]
    return float(value) if isinstance(value, str) and value in ("inf", "-inf", "nan") else value


def replay(
    recording: Recording,
    model: str | None = None,
    progress: Callable[[int], None] = lambda done: None,
    own: Agent | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the comparison, and a list with the `recorded` and `replayed` call of each decision.

    `recorded` is None for a miss, `replayed` for an `error`. A replay does not wait for a clock, and each decision has
    the recorded history, so two replays differ only in `decide_ms`. If the agent `own` has an expert, that one is used.
    Raises UserError if the model cannot decide with these tools, or if only the record names the model.
    """
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
    decider = build_decider(assembly.decider(config, agent, chosen))
    decisions, decide_ms = list[dict[str, Any]](), list[float]()
    answer(decider, recording.seen[0].request)  # warm up, so that no measured decision includes the setup
    for seen in recording.seen:
        reply, request = answer(decider, seen.request), seen.request
        tick = {"k": request.tick, "t_s": seen.t_s, "instruction": request.instruction}
        call = None if reply.decision is None else "null" if reply.decision.call is None else reply.decision.call.text()
        calls = {"recorded": seen.call, "replayed": call, "error": reply.error}
        decisions.append({**tick, "observation": request.observation, **calls})
        decide_ms.append(reply.decide_ns / 1e6)
        progress(len(decisions))
    return {
        "file": str(recording.path),
        "whole": recording.whole,
        "recorded": {name: header[name] for name in ("agent", "model", "hz", "engine")},
        "replayed": {"model": chosen, "hz": config.hz},
        **_compared(decisions),
        "decide_ms": Histogram(decide_ms).summary(),
        "above_period": sum(ms > 1e3 / config.hz for ms in decide_ms),
    }, decisions


def _compared(decisions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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
