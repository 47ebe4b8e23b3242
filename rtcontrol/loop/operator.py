"""People over the loop: pause, resume, stop, the yes that named tools wait for, and calls too unsure to act."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rtcontrol.agents import Agent, Tool
from rtcontrol.hosts.protocol import DecisionReply
from rtcontrol.loop.actuator import Actuator
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.requests import echo
from rtcontrol.loop.tick_outcome import RunContext, TickOutcomes
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.checkpoint.special_tokens import ARGUMENTS
from rtcontrol.models.errors import UserError
from rtcontrol.records import Completion, OperatorCommand, Tick


class Doubt(NamedTuple):
    """What holds a decision back: the head or parameter, how sure it is, how sure it must be. Of a null function that
    says that nothing was understood, `least` is 1."""

    head: str
    confidence: float
    least: float


class ConfidenceGate:
    """`floors` are the least confidence by head or parameter, of all heads under the empty name; `null_is_doubt`: a
    null function says that what is told is not understood."""

    def __init__(self, floors: Mapping[str, float], tools: Iterable[Tool], null_is_doubt: bool = False) -> None:
        self._floors = dict(floors)
        self._least = self._floors.pop("", 0.0)
        self._null_is_doubt = null_is_doubt
        self._heads = heads_of(tools)
        self.closed = bool(self._floors or self._least > 0 or null_is_doubt)  # it may hold something

    def doubt(self, decision: Decision) -> Doubt | None:
        """Why a decision must not act; None where it may."""
        call, confidence = decision.call, decision.confidence
        if call is None and self._null_is_doubt:
            return Doubt("function", 1.0 - confidence.get("function", 1.0), 1.0)
        if self._least and min(confidence.values(), default=1.0) < self._least:
            head = min(confidence, key=lambda name: confidence[name])
            return Doubt(head, confidence[head], self._least)
        names = self._heads.get(call.name, {}) if call is not None else {}
        for head, floor in self._floors.items():
            if (sure := confidence.get(names.get(head, head), 1.0)) < floor:
                return Doubt(head, sure, floor)
        return None


def heads_of(tools: Iterable[Tool]) -> dict[str, dict[str, str]]:
    """By tool: the head of each parameter."""
    return {
        t.name: {p.name: ARGUMENTS[i] for i, slot in enumerate(t.schema.slots()) for p in slot.parameters}
        for t in tools
    }


# So long, beyond what was sure meanwhile, decisions must be unsure: one that is in doubt at times is understood.
DOUBT_S = 0.5
NAMED = 3  # words


class ConfidenceMonitor:
    """`heard` of each decision of a run that has a gate; `notify` tells people. The owner may set `doubted`
    (instruction, what is said of it), which is told too. All from the loop's thread."""

    def __init__(self, hz: float, notify: Callable[[str], None]) -> None:
        self._ticks, self._notify = max(1, math.ceil(DOUBT_S * hz)), notify
        self.doubted: Callable[[str, str], None] = lambda text, what: None
        self._instruction: str | None = None
        self._doubt, self._told = 0, False

    def heard(self, instruction: str, unsure: bool, unknown: Sequence[str] = ()) -> None:
        """A decision by this instruction was or was not too unsure to act; `unknown` words of it were never taught."""
        if instruction != self._instruction:
            self._instruction, self._doubt, self._told = instruction, 0, False
        self._doubt = self._doubt + 1 if unsure else max(0, self._doubt - 1)
        if self._doubt >= self._ticks and not self._told:
            self._told = True
            because = f"{never_taught(unknown)}; its" if unknown else "its"
            what = f'"{echo(instruction)}" is not understood: {because} calls are unsure, and held back.'
            self._notify(f"{what} Say it in other words.")
            self.doubted(instruction, what)


def never_taught(unknown: Sequence[str]) -> str:
    """The words that the model was never taught, for people."""
    named = ", ".join(f'"{echo(word)}"' for word in unknown[:NAMED])
    more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
    return f"{named}{more} {'is a word' if len(unknown) == 1 else 'are words'} that it was never taught"


State = Literal["running", "paused", "stopped"]
SAID = ("pause", "resume", "stop", "confirm", "deny")


@dataclass(slots=True, eq=False)
class PendingApproval:
    """A call that waits for a person's yes."""

    tick: Tick
    reply: DecisionReply
    call: Call
    asked_ns: int
    expires_ns: int
    denied: bool = False


SETTLE_NS = 1_000_000_000  # so long a word without a number may be meant for the question before
NOTHING = "No call waits for a yes."
CHANGED = "The question has changed: look at what is asked now, and say it again."


class OperatorControl:
    """What people may do to a run: `say`, from any thread; the rest is the loop's.

    `state` is running, paused or stopped. Where it is not running the actuator is shut (`Actuator.bar`): no call acts,
    as the world looks under its own lock; the safe call alone does. Nor does one that was asked for before a resume. A
    stop is final. At most one call waits for a yes (`asking`): while it does, other calls of such tools are held back;
    after a no, until its time is over. A word that does not say which call it answers is not taken where one that
    nobody answered has just given way to another.
    """

    def __init__(
        self,
        context: RunContext,
        outcomes: TickOutcomes,
        actuator: Actuator,
        order: Callable[[Tick, DecisionReply, Call, int | None, bool], None],
    ) -> None:
        config, agent = context.config, context.agent
        self.state: State = "running"
        self.asking: PendingApproval | None = None
        self._named = frozenset(config.confirm) | frozenset(agent.confirm)
        self._gate = ConfidenceGate(config.floors, agent.tools, agent.null_is_doubt)
        self.understanding = ConfidenceMonitor(config.hz, context.notify)
        self.careful = bool(self._named or self._gate.closed)
        self._wait_ns = round(config.confirm_s * 1e9)
        self._actuator, self._outcomes, self._emit = actuator, outcomes, context.emit
        self._notify, self._wake, self._stop, self._order = context.notify, context.host.wake, context.stop, order
        self.changed: Callable[[], None] = lambda: None  # the owner may set it: told of each word, and each question
        self._lock = threading.Lock()
        self._left: tuple[int, str] | None = None  # when the last question ended without an answer, and what it was
        self._settled_ns = 0  # until then a word may be meant for that one

    # -- from any thread ----------------------------------------------------------------------------------------------

    def say(self, said: str, by: str, k: int | None = None) -> str:
        """Do it now, and return one sentence about it. A yes or no is for the call of tick `k`, or for the one that
        waits. Raises ValueError for another word."""
        if said not in SAID:
            raise ValueError(f"{said!r} is none of {', '.join(SAID)}")
        word = OperatorCommand(said, by, time.monotonic_ns(), k)
        with self._lock:
            if self.state == "stopped":
                return "It is stopped: a stop is final."
            if said in ("confirm", "deny"):
                asking = self.asking
                if k is None and word.t_ns < self._settled_ns:
                    return CHANGED
                if asking is None or asking.denied or k not in (None, asking.tick.k):
                    return NOTHING
                word = OperatorCommand(said, by, word.t_ns, asking.tick.k)
            elif said == "resume":
                if self.state == "running":
                    return "It is running."
                self.state = "running"
                self._actuator.bar(None)
            elif said == "stop" or self.state == "running":
                self._shut("stopped" if said == "stop" else "paused", said)
            else:
                return "It is paused already."
            self._actuator.effects.append(word)
        if said == "stop":
            self._stop("stop")
        self._wake()
        told = {"pause": "paused: the safe call acts until you resume", "resume": "resumed", "stop": "stopped"}
        return f"{told.get(said, said)} ({by})"

    def _opened(self, now_ns: int, shown: str) -> None:
        """This is asked from now on. Under the lock."""
        left_ns, before = self._left or (0, shown)
        settle_ns = min(SETTLE_NS, self._wait_ns // 2)
        self._settled_ns = now_ns + settle_ns if before != shown and now_ns - left_ns < settle_ns else 0

    def end(self) -> None:
        """The run is over: whatever its end is, nothing but the safe call acts from here on."""
        with self._lock:
            self.state = "stopped"
            self._actuator.bar("stopped")
        if self.asking is not None:
            self._drop(self.asking)

    def _shut(self, state: State, why: str) -> None:
        actuator = self._actuator
        self.state = state
        actuator.bar(state)  # first: a call that waits for the world now finds it under the world's lock
        now = time.monotonic_ns()
        if (cleared := actuator.safe(why, actuator.parting)) is not None:
            actuator.effects.append(Completion(cleared.tick, "refused", now, now, False))

    # -- from the loop's thread ---------------------------------------------------------------------------------------

    def heard(self, word: OperatorCommand) -> None:
        """The loop takes notice of what was said."""
        asking = self.asking
        event: dict[str, Any] = {"people": word.said, "by": word.by, "t_s": self._t_s(word.t_ns)}
        if word.said in ("pause", "stop"):
            self._outcomes.suspend(self._outcomes.newest_k)
        elif word.said == "resume":
            self._outcomes.policy.suspended = False
        elif asking is None or asking.denied or asking.tick.k != word.k or word.t_ns > asking.expires_ns:
            event |= {"k": word.k, "void": True}
            self._notify(f"{word.said} ({word.by}) came too late: the call of tick {word.k} is refused already")
        else:
            event |= {"k": word.k, "call": asking.call.text()}
            asking.denied = word.said == "deny"
        self._emit(event)
        if word.said == "confirm" and "void" not in event and asking is not None:
            self.asking = None
            asking.tick.waited_ns = time.monotonic_ns() - asking.asked_ns
            self._order(asking.tick, asking.reply, asking.call, asking.expires_ns, True)
        elif word.said in ("pause", "stop") and asking is not None:
            self._drop(asking)
        self.changed()

    def withhold(self, tick: Tick, reply: DecisionReply, call: Call | None) -> None:
        """The tick has its decision, and nothing may act: it is held, and the world is told to stay safe."""
        text = None if call is None else call.text()
        self._outcomes.stay_safe(tick, reply)
        self._outcomes.settle(tick, reply, "held", text, why=self._actuator.shut or "paused")

    def holds(self, tick: Tick, reply: DecisionReply, decision: Decision) -> bool:
        """Whether the decision's call must not act (yet): the tick is over then."""
        call = decision.call
        if self._actuator.shut is not None or (tick.asked_ns or tick.woke_ns) < self._actuator.open_ns:
            self.withhold(tick, reply, call)
        elif self._doubts(tick, decision):
            self._outcomes.hold_back(tick, reply, call, "confidence")
        elif call is not None and call.name in self._named:
            self._ask(tick, reply, call)
        else:
            return False
        return True

    def _ask(self, tick: Tick, reply: DecisionReply, call: Call) -> None:
        """The call waits for a person's yes; its tick is held back like one of an unsure decision."""
        now = time.monotonic_ns()
        with self._lock:
            busy = self.asking is not None
            if not busy:
                self.asking = PendingApproval(tick, reply, call, now, now + self._wait_ns)
                self._opened(now, call.text())
        if not busy:
            event = {"people": "ask", "k": tick.k, "call": call.text(), "t_s": self._t_s(now)}
            self._emit({**event, "seconds": self._wait_ns / 1e9})
            self._notify(f"may it {call.text()}? /yes or /no within {self._wait_ns / 1e9:g} s")
            self.changed()
        self._outcomes.hold_back(tick, reply, call, "confirm")

    def expire(self, now_ns: int) -> None:
        """Refuse the call that no person answered in time."""
        if self.asking is not None and now_ns > self.asking.expires_ns:
            if not self.asking.denied:
                self._notify(f"nobody said yes or no to {self.asking.call.text()} in time: it is refused")
            self._drop(self.asking)

    def _drop(self, asking: PendingApproval) -> None:
        with self._lock:
            self.asking = None
            if not asking.denied:
                self._left = time.monotonic_ns(), asking.call.text()
        if not asking.denied:
            t_s = self._t_s(time.monotonic_ns())
            self._emit({"people": "unanswered", "k": asking.tick.k, "call": asking.call.text(), "t_s": t_s})

    def unsure(self, decision: Decision) -> bool:
        """Whether the confidence gate holds the decision back."""
        return self._gate.doubt(decision) is not None

    def _doubts(self, tick: Tick, decision: Decision) -> bool:
        unsure = self.unsure(decision)
        if not tick.calls:
            self.understanding.heard(tick.request.instruction, unsure, decision.unknown)
        return unsure

    def _t_s(self, t_ns: int) -> float:
        return self._outcomes.t_s(t_ns) if self._outcomes.t0_ns else 0.0


def check_named(config: RunConfig, agent: Agent) -> None:
    """Raises UserError where --confirm or --min-confidence names what this agent has not, or its model would not be
    shown the calls of a tick."""
    if config.calls_per_tick > agent.history + 1:
        raise UserError(
            f"--calls-per-tick {config.calls_per_tick}: the model of {agent.name} is shown its last {agent.history} "
            "calls: it would not know of all that it made before in the same tick.",
            f"Give at most {agent.history + 1}, or an agent of your own (--agent FILE.py) with "
            f"history={config.calls_per_tick - 1} and a model that was trained so.",
        )
    tools: Mapping[str, Mapping[str, str]] = heads_of(agent.tools)
    for name in config.confirm:
        if name not in tools:
            raise UserError(f"--confirm {name} is no tool of {agent.name}.", f"There are {', '.join(tools)}.")
    heads = {"function"}.union(*(names for names in tools.values()), *(names.values() for names in tools.values()))
    for head in config.floors:
        if head and head not in heads:
            raise UserError(
                f"--min-confidence {head}={config.floors[head]:g}: {agent.name} has no such head.",
                f"There are {', '.join(sorted(heads))}.",
            )
