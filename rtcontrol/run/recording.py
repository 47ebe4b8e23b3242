"""A record to be decided again: what was observed, what came of it, and the agent that decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rtcontrol.agents import Agent, Fallback, Tools
from rtcontrol.hosts.deciders import PLAIN
from rtcontrol.models.call import StandingCall
from rtcontrol.models.checkpoint.checkpoint import zoo
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.record_reader import read_record, record_in

MORE = "Record one with `rtcontrol run --record-observations yes` (the default), and give its record.mcap."


@dataclass(frozen=True, slots=True)
class Seen:
    """One observation that was decided. `call`: what was decided then (as text, `null` for the null function; None
    where the tick missed without a decision); `standing`: with hysteresis, the call that was in force."""

    k: int
    t_s: float
    epoch: int
    observation: str
    instruction: str
    history: tuple[str, ...]
    data: Any
    call: str | None
    standing: StandingCall | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """A record's header, and its observations in the order of their ticks (at least one). `whole`: it has an end;
    `engine`: what decided then, by its own word."""

    path: Path
    header: Mapping[str, Any]
    seen: tuple[Seen, ...]
    whole: bool
    engine: str

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
            instruction=self.seen[0].instruction,
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


@cache
def recording(path: Path) -> Recording:
    """Read once. UserError for what cannot be read, is not ours, or has no observations."""
    header: dict[str, Any] = {}
    looks: dict[int, dict[str, Any]] = {}
    decided: dict[int, str] = {}
    whole, started = False, dict[str, Any]()
    record = record_in(path)
    try:
        for event in read_record(record):
            if "observation" in event:
                looks[event["k"]] = event
            elif "kind" in event:
                if (call := "null" if event["kind"] == "null" else event.get("call")) is not None:
                    decided[event["k"]] = call
            elif "header" in event:
                header = event["header"]
            elif "start" in event:
                started = event["start"]
            elif "account" in event:  # of the parts that were removed
                started = dict(event["account"].get("start", ()))
            elif "end" in event:
                whole = True
        if not header:
            raise UserError(f"{record} is no record of a run: it does not begin with the header of one.", MORE)
        if not looks or "tools" not in header:
            raise UserError(f"{record} has no observations: there is nothing to decide again.", MORE)
        seen = tuple(
            Seen(
                k,
                k / header["hz"] if header["clock"] == "lockstep" else float(look["t_s"]),
                look["epoch"],
                look["observation"],
                look["instruction"],
                tuple(look["history"]),
                restored(look.get("data")),
                decided.get(k),
                StandingCall.from_dict(look["in_force"]) if "in_force" in look else None,
            )
            for k, look in sorted(looks.items())
        )
        engine = str(started.get("host_info", {}).get("engine", header["engine"]))
        made = Recording(record, header, seen, whole, engine)
        made.agent()
        return made
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{record} is no record of a run ({type(error).__name__}: {error}).", MORE) from error
