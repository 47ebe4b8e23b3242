"""What a run is: one frozen, validated value."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rtcontrol.models.decode.hysteresis import margin_of
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.registry import ENGINES
from rtcontrol.telemetry.run_folder import describe
from rtcontrol_client.wire.limits import LIMITS

if TYPE_CHECKING:
    from rtcontrol.agents import Agent

CHOICES = {
    "host": ("ray", "inprocess"),
    "clock": ("wall", "lockstep"),
    "on_miss": ("hold", "safe", "stop"),
    "record_observations": ("yes", "no"),
}

MIN_HZ, MAX_HZ = 0.001, 10_000.0
MODEL = (
    "Bundled name, folder or OWNER/NAME[:SUBFOLDER]; or expert, noop, random, decisions:URL#NAME, "
    "systemone:URL#NAME, openpi:ws://HOST:PORT#MAPPING. (default: the agent's)"
)
HYSTERESIS = (
    "A head's value changes only where another is by so much more probable: margin=0.2 (docs/steadiness.md). "
    "(default: it follows each decision)"
)
INTERPRETER = (
    "Maps each instruction to a goal of the agent, once: a checkpoint, or chat:URL#NAME (docs/interpreter.md). "
    "(default: the model reads the instruction as it is)"
)
MAX_PIPELINE = 64
CALLS_PER_TICK = (
    "Calls of one observation at most: each is decided after the one before has acted, by the deadline. One more than "
    "the calls that the model is shown (an agent's `history`): the bundled agents show none, and take one."
)
MAX_CALLS = 7  # the last one is decided with six in its history, as many as a prompt shows
UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
LEAST_BYTES = 10**6
Confidence = float | dict[str, float]
MAX_INSTRUCTION_BYTES = LIMITS.max_string_bytes
LONGEST = 1e12  # in whatever unit: a bound that keeps nanoseconds whole numbers


def plain_text(text: str) -> str:
    """`text` without the lone surrogates that undecodable bytes on a command line or stdin leave: they cannot be
    sent or written. Each becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def instruction_text(text: str) -> str:
    """`plain_text` of an instruction, wherever it comes from. UserError for one that no message could tell of."""
    text = plain_text(text)
    if len(text) > MAX_INSTRUCTION_BYTES // 4 and (size := len(text.encode())) > MAX_INSTRUCTION_BYTES:
        what = f"The instruction is {size} bytes long; {MAX_INSTRUCTION_BYTES} is the most."
        raise UserError(what, "Say it in fewer words.")
    return text


def size(text: str) -> int:
    """Bytes from such as 500M. UserError for anything else, and for less than a record's parts need."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in UNITS else (text, "")
    try:
        told = round(float(number) * UNITS[unit])
    except (ValueError, OverflowError):
        raise UserError(f"--record-max {text} is no size.", "Give bytes, or such as 500M or 2G.") from None
    if told < LEAST_BYTES:
        raise UserError(f"--record-max {text} is too small.", "Give 1M or more.")
    return told


def folder(path: Path) -> Path:
    """A folder that was named: `.` too, which equals the empty path of one that was not."""
    return path if path.parts else Path.cwd()


def confidence(text: str) -> Confidence:
    """The least confidence of all heads (0.5), of some (function=0.6,main=0.3), or both. UserError for else."""
    try:
        parts = [part.rpartition("=") for part in text.split(",")]
        floors = {head.strip(): float(least) for head, _, least in parts}
        if len(floors) < len(parts) or any(equals and not head.strip() for head, equals, _ in parts):
            raise ValueError
    except ValueError:
        raise UserError(
            f"--min-confidence {text} is no list of probabilities.", "Give 0.5, or function=0.6,main=0.3."
        ) from None
    return floors[""] if list(floors) == [""] else floors


@dataclass(frozen=True, slots=True)
class Flag:
    """Stands in a field's Annotated: it is a flag. `name` where that is not the field's own; `given` is the type that
    the command line takes and `parse` what makes the field's value of it, where they differ."""

    help: str
    name: str = ""
    given: Any = None
    parse: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True, slots=True, kw_only=True)
class DeciderOptions:
    """What a run and a server have in common: what decides, where, and what the record keeps."""

    engine: Annotated[str, Flag(f"What runs the model: {', '.join(ENGINES)}.")] = "torch"
    dtype: Annotated[str, Flag("Numbers of the model: auto, fp32 or bf16 (docs/checkpoints.md).")] = "auto"
    threads: int | None = None
    host: Annotated[str, Flag("Where it decides: ray or inprocess.")] = "ray"
    standby: Annotated[
        bool,
        Flag("--host ray: keep a second decoder warm, which takes over at once (each takes a GPU where there is one)."),
    ] = False
    backup: Annotated[
        str | None,
        Flag("A local model, asked beside --model at each tick: it decides what that one is late or unsure for."),
    ] = None
    calls_per_tick: Annotated[int, Flag(CALLS_PER_TICK)] = 1
    hysteresis: Annotated[str | None, Flag(HYSTERESIS)] = None
    interpreter: Annotated[str | None, Flag(INTERPRETER)] = None
    seed: Annotated[int, Flag("Of the first episode, and of --model random; the next episodes have the next.")] = 0
    record_observations: Annotated[
        str,
        Flag("no: the record keeps neither what was observed nor what the model read of it; nothing to replay."),
    ] = "yes"
    record_max: Annotated[
        str, Flag("The record's size, in bytes or with k, M, G; beyond it the oldest part is removed.")
    ] = "1G"
    record_pictures: Annotated[
        float, Flag("Pictures of the world a second, at most, as its client sends them; 0: none.")
    ] = 0.0

    def check_shared(self) -> None:
        """Raises UserError for what is out of range, or does not go together."""
        for name, allowed in CHOICES.items():
            if (value := getattr(self, name, allowed[0])) not in allowed:
                option = "--" + name.replace("_", "-")
                raise UserError(f"{option} {value} is unknown.", f"Choose one of {', '.join(allowed)}.")
        if self.standby and self.host != "ray":
            raise UserError(f"--standby has no effect with --host {self.host}.", "Leave one of them out.")
        if not 1 <= self.calls_per_tick <= MAX_CALLS:
            what = f"--calls-per-tick {self.calls_per_tick} is out of range."
            raise UserError(what, f"Give 1 to {MAX_CALLS} calls.")
        if self.hysteresis is not None:
            margin_of(self.hysteresis)
            if self.calls_per_tick > 1:
                what = f"--hysteresis and --calls-per-tick {self.calls_per_tick} exclude each other"
                raise UserError(f"{what}: of several calls none is the one in force.", "Leave one of them out.")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed} is negative.", "Give 0 or more.")
        size(self.record_max)
        if not 0 <= self.record_pictures <= 100:
            raise UserError(f"--record-pictures {self.record_pictures:g} is no rate.", "Give 0 (none) to 100 a second.")
        if self.record_pictures and self.record_observations == "no":
            what = "--record-pictures shows what was observed, and --record-observations no keeps none of it."
            raise UserError(what, "Leave one of them out.")

    def shared(self) -> dict[str, Any]:
        """Return these options by name."""
        return {field.name: getattr(self, field.name) for field in fields(DeciderOptions)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(DeciderOptions):
    """A run's settings. None takes the default that the property of the same meaning computes.

    `warmup` decisions come before the first release, and more as long as `warmup_s` are not over. Relations, checked
    here: 0.001 <= hz <= 10000; 0 < deadline <= pipeline * period; max age > 0; hold >= 0.
    """

    env: Annotated[str, Flag("Environment: a name (`rtcontrol envs`), or a .py file.")]
    out: Annotated[Path, Flag("Folder of record.mcap and report.json. (default: runs/ENV-TIME)", parse=folder)] = Path()
    hz: Annotated[float, Flag("Ticks a second.")] = 16.0
    deadline_ms: Annotated[float | None, Flag("From release to deadline. (default: the period)")] = None
    max_age_ms: Annotated[float | None, Flag("Older observations are stale. (default: 4 periods, at least 250)")] = None
    pipeline: Annotated[int, Flag("Decisions in flight; deadline <= pipeline x period.")] = 1
    episodes: Annotated[int | None, Flag("End after so many. (default: 5, or no end with --duration)")] = None
    duration_s: Annotated[float | None, Flag("End after so many seconds.", "duration")] = None
    instruction: Annotated[str | None, Flag("The instruction. (default: the agent's)", "instruct")] = None
    agent: Annotated[
        str | None, Flag("Agent: a name (`rtcontrol agents`) or a .py file. (default: the environment's)")
    ] = None
    model: Annotated[str | None, Flag(MODEL)] = None
    clock: Annotated[str, Flag("wall: the world runs on; lockstep: it waits.")] = "wall"
    on_miss: Annotated[str, Flag("hold the last call, safe call, or stop the run.")] = "hold"
    max_miss_rate: Annotated[float | None, Flag("Exit status 3 above it.")] = None
    hold_ms: Annotated[float | None, Flag("Hold at most so long, then the safe call. (default: the agent's)")] = None
    min_confidence: Annotated[
        Confidence | None,
        Flag(
            "Less sure calls are held back: 0.5, or by head or parameter, such as function=0.6,main=0.3. "
            "(default: what the checkpoint says, if it does)",
            given=str,
            parse=confidence,
        ),
    ] = None
    confirm: Annotated[
        tuple[str, ...],
        Flag("This tool waits 10 s for a person's yes; may be repeated.", given=list[str], parse=tuple),
    ] = ()
    confirm_s: float = 10.0
    warmup: int = 5
    warmup_s: float = 0.0
    first_observation_s: float = 10.0

    def __post_init__(self) -> None:
        if self.instruction is not None:
            object.__setattr__(self, "instruction", instruction_text(self.instruction))
        if not MIN_HZ <= self.hz <= MAX_HZ:
            raise UserError(f"--hz {self.hz:g} is no rate.", f"Give {MIN_HZ:g} to {MAX_HZ:g}, such as --hz 16.")
        self.check_shared()
        if not 1 <= self.pipeline <= MAX_PIPELINE:
            raise UserError(f"--pipeline {self.pipeline} is out of range.", f"Give 1 to {MAX_PIPELINE} decisions.")
        self._positive("deadline_ms", self.deadline_ms)
        self._positive("max_age_ms", self.max_age_ms)
        self._positive("duration", self.duration_s)
        self._positive("episodes", self.episodes)
        if self.deadline_ns > self.pipeline * self.period_ns:
            need = math.ceil(self.deadline_ns / self.period_ns)
            raise UserError(
                f"--deadline-ms {self.deadline_ms:g} is beyond {self.pipeline} x {self.period_ns / 1e6:g} ms: "
                "deadline <= pipeline x period must hold, or more decisions would be in flight than --pipeline allows.",
                f"Use --pipeline {need}, or a deadline of at most {self.pipeline * self.period_ns / 1e6:g} ms.",
            )
        if self.hold_ms is not None and not 0 <= self.hold_ms <= LONGEST:
            raise UserError(
                f"--hold-ms {self.hold_ms:g} is no time.", f"Give 0 (the safe call at once) to {LONGEST:g}."
            )
        for head, floor in self.floors.items():
            if not 0 <= floor <= 1:
                named = f"{head}={floor:g}" if head else f"{floor:g}"
                raise UserError(f"--min-confidence {named} is no probability.", "Give 0 to 1.")
        self._positive("confirm_s", self.confirm_s)
        if self.max_miss_rate is not None and not 0 <= self.max_miss_rate <= 1:
            raise UserError(f"--max-miss-rate {self.max_miss_rate:g} is not a share.", "Give 0 to 1, such as 0.005.")

    def _positive(self, name: str, value: float | None) -> None:
        if value is not None and not 0 < value <= LONGEST:
            raise UserError(
                f"--{name.replace('_', '-')} {value:g} must be above 0 and at most {LONGEST:g}.",
                "Leave it out for the default.",
            )

    @property
    def floors(self) -> dict[str, float]:
        """The least confidence by head; of the empty name, of all."""
        given = self.min_confidence
        return dict(given) if isinstance(given, dict) else {"": given or 0.0}

    @property
    def period_ns(self) -> int:
        return round(1e9 / self.hz)

    @property
    def deadline_ns(self) -> int:
        """From release to deadline; the period by default."""
        return self.period_ns if self.deadline_ms is None else round(self.deadline_ms * 1e6)

    @property
    def max_age_ns(self) -> int:
        """An older observation is stale; by default four periods, at least 250 ms."""
        if self.max_age_ms is not None:
            return round(self.max_age_ms * 1e6)
        return max(4 * self.period_ns, 250_000_000)

    def header(self, hold_ms: float, agent: Agent | None = None) -> dict[str, Any]:
        """What a record begins with: these settings, `hold_ms` being the agent's, the machine, and what makes rows of
        the agent's decisions (tools in head order, how much history, whether a call may be null)."""
        decides: dict[str, Any] = {}
        if agent is not None:
            decides = {"tools": agent.tools.openai(), "history": agent.history, "allow_null": agent.allow_null}
        told = {field.name: getattr(self, field.name) for field in fields(RunConfig)}
        return {
            **{k: str(v) if isinstance(v, Path) else v for k, v in told.items()},
            "period_ms": self.period_ns / 1e6,
            "deadline_ms": self.deadline_ns / 1e6,
            "max_age_ms": self.max_age_ns / 1e6,
            "hold_ms": hold_ms if self.hold_ms is None else self.hold_ms,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": describe(),
            **decides,
        }
