"""Control by operators: pause, resume, stop, confirmation of named tools, and calls that are too unsure to act. Pure.

`OperatorState` takes a command on the caller's thread and answers at once. The loop's `OperatorGate` handles the
command afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rtcontrol.hosts.protocol import DecisionReply
from rtcontrol.loop.active import echo
from rtcontrol.loop.ledger import Ledger
from rtcontrol.models.call import Call, Decision
from rtcontrol.records import Action, Doubt, LoopReport, Notify, OperatorCommand, PendingApproval, Question, Tick

DOUBT_S = 0.5  # how long decisions must be unsure, minus sure ones: with an understood instruction some may be unsure
NAMED = 3  # words
COMMANDS = ("pause", "resume", "stop", "confirm", "deny")
SETTLE_NS = 1_000_000_000  # how long a command without a number may still be meant for the previous question
NOTHING = "No call waits for a yes."
CHANGED = "The question has changed: look at what is asked now, and say it again."
ANSWERS = {"pause": "paused: the safe call acts until you resume", "resume": "resumed", "stop": "stopped"}

State = Literal["running", "paused", "stopped"]
STATES: dict[str, State] = {"pause": "paused", "resume": "running", "stop": "stopped"}


class OperatorState:
    """The state that operators control. `state`: running, paused or stopped, which is final; `asking`: the call that
    waits for a yes.

    At most one call waits. If another call has just replaced an unanswered one, a command must say which call it
    answers.
    """

    def __init__(self, wait_ns: int) -> None:
        self.state: State = "running"
        self.asking: PendingApproval | None = None
        self._wait_ns = wait_ns
        self._left: tuple[int, str] | None = None  # the last question without an answer: when it ended, and its call
        self._settled_ns = 0  # until then a command may be meant for that question

    def take(self, command: OperatorCommand) -> tuple[str, OperatorCommand | None]:
        """Take a command. Return one sentence about the result, and the command to execute, if any. Raises ValueError
        for an unknown word."""
        word = command.word
        if word not in COMMANDS:
            raise ValueError(f"{word!r} is none of {', '.join(COMMANDS)}")
        if self.state == "stopped":
            return "It is stopped: a stop is final.", None
        if word in ("confirm", "deny"):
            return self._answer(command)
        if STATES[word] == self.state:
            return f"It is {self.state}.", None
        self.state = STATES[word]
        return f"{ANSWERS[word]} ({command.by})", command

    def show(self, question: Question, now_ns: int) -> None:
        """Show a new question, or None if the previous one is over."""
        approval = self.asking = question.approval
        if approval is None:
            if question.unanswered:
                self._left = now_ns, question.unanswered
            return
        shown = approval.call.text()
        left_ns, before = self._left or (0, shown)
        settle_ns = min(SETTLE_NS, self._wait_ns // 2)
        self._settled_ns = now_ns + settle_ns if before != shown and now_ns - left_ns < settle_ns else 0

    def _answer(self, command: OperatorCommand) -> tuple[str, OperatorCommand | None]:
        approval, k = self.asking, command.k
        if k is None and command.t_ns < self._settled_ns:
            return CHANGED, None
        if approval is None or approval.denied or k not in (None, approval.tick.k):
            return NOTHING, None
        answer = OperatorCommand(command.word, command.by, command.t_ns, approval.tick.k)
        return f"{command.word} ({command.by})", answer


class ConfidenceMonitor:
    """A monitor that notifies people and the run's listener once if the decisions under an instruction stay unsure."""

    def __init__(self, hz: float, out: list[Action]) -> None:
        self._ticks = max(1, math.ceil(DOUBT_S * hz))
        self._out = out
        self._instruction: str | None = None
        self._doubt, self._notified = 0, False

    def decided(self, instruction: str, unsure: bool, unknown: Sequence[str] = ()) -> None:
        """Count a decision under an instruction that was, or was not, too unsure to act. The model never learnt the
        `unknown` words."""
        if instruction != self._instruction:
            self._instruction, self._doubt, self._notified = instruction, 0, False
        self._doubt = self._doubt + 1 if unsure else max(0, self._doubt - 1)
        if self._doubt >= self._ticks and not self._notified:
            self._notified = True
            because = f"{never_taught(unknown)}; its" if unknown else "its"
            text = f'"{echo(instruction)}" is not understood: {because} calls are unsure, and held back.'
            self._out.append(Notify(f"{text} Try other words."))
            self._out.append(LoopReport("doubted", instruction, text))


def never_taught(unknown: Sequence[str]) -> str:
    """Return a text for people that lists words which the model never learnt."""
    named = ", ".join(f'"{echo(word)}"' for word in unknown[:NAMED])
    more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
    return f"{named}{more} {'is a word' if len(unknown) == 1 else 'are words'} that it was never taught"


class OperatorGate:
    """The loop's view of the operator, which determines why a decision must not act. No call acts unless `state` is
    running, and no call that was requested before `open_ns`, the last resume. While a call waits for a yes (`asking`),
    or after a no until its time is over, other calls of named tools are withheld. `doubt` returns why a decision is
    unsure."""

    def __init__(
        self,
        out: list[Action],
        ledger: Ledger,
        doubt: Callable[[Decision], Doubt | None] | None,
        named: frozenset[str],
        wait_ns: int,
        monitor: ConfidenceMonitor,
    ) -> None:
        self.state: State = "running"
        self.open_ns = 0
        self.asking: PendingApproval | None = None
        self.careful = bool(named or doubt is not None)
        self._out, self._ledger, self._doubt = out, ledger, doubt
        self._named, self._wait_ns, self._monitor = named, wait_ns, monitor

    def unsure(self, decision: Decision) -> bool:
        """Return whether the confidence gate withholds the decision."""
        return self._doubt is not None and self._doubt(decision) is not None

    def holds(self, tick: Tick, decision: Decision) -> Literal["state", "confidence", "confirm"] | None:
        """Return why the call of a decision must not act (yet), or None if it may."""
        if self.state != "running" or (tick.requested_ns or tick.woke_ns) < self.open_ns:
            return "state"
        if not self.careful:
            return None
        unsure = self.unsure(decision)
        if not tick.calls:
            self._monitor.decided(tick.request.instruction, unsure, decision.unknown)
        if unsure:
            return "confidence"
        return "confirm" if decision.call is not None and decision.call.name in self._named else None

    def ask(self, tick: Tick, reply: DecisionReply, call: Call, now_ns: int) -> None:
        """Ask the operator for a yes, unless another call waits for one."""
        if self.asking is not None:
            return
        seconds = self._wait_ns / 1e9
        self.asking = PendingApproval(tick, reply, call, now_ns, now_ns + self._wait_ns)
        self._out.append(Question(self.asking))
        line = {"people": "ask", "k": tick.k, "call": call.text(), "t_s": self._ledger.t_s(now_ns)}
        self._ledger.write({**line, "seconds": seconds})
        self._out.append(Notify(f"may it {call.text()}? /yes or /no within {seconds:g} s"))
        self._out.append(LoopReport("changed"))

    def commanded(self, command: OperatorCommand, now_ns: int) -> PendingApproval | None:
        """Handle a command. Return the call that the command confirms, if any."""
        word, approval = command.word, self.asking
        line: dict[str, Any] = {"people": word, "by": command.by, "t_s": self._ledger.t_s(command.t_ns)}
        confirmed = None
        if word in STATES:
            self.state = STATES[word]
            self.open_ns = command.t_ns if word == "resume" else self.open_ns
        elif approval is None or approval.denied or approval.tick.k != command.k or command.t_ns > approval.expires_ns:
            line |= {"k": command.k, "void": True}
            late = f"{word} ({command.by}) came too late: the call of tick {command.k} is refused already"
            self._out.append(Notify(late))
        else:
            line |= {"k": command.k, "call": approval.call.text()}
            approval.denied = word == "deny"
            confirmed = approval if word == "confirm" else None
        self._ledger.write(line)
        if confirmed is not None:
            self.asking = None
            self._out.append(Question(None))
            confirmed.tick.waited_ns = now_ns - confirmed.requested_ns
        elif word in ("pause", "stop"):
            self.drop(now_ns)
        return confirmed

    def expire(self, now_ns: int) -> None:
        """Refuse the call that waits for a yes if no answer came in time."""
        if (approval := self.asking) is not None and now_ns > approval.expires_ns:
            if not approval.denied:
                self._out.append(Notify(f"{approval.call.text()} got neither yes nor no in time: it is refused"))
            self.drop(now_ns)

    def drop(self, now_ns: int) -> None:
        """Drop the call that waits for a yes."""
        approval, self.asking = self.asking, None
        if approval is None:
            return
        text = approval.call.text()
        self._out.append(Question(None, "" if approval.denied else text))
        if not approval.denied:
            line = {"people": "unanswered", "k": approval.tick.k, "call": text, "t_s": self._ledger.t_s(now_ns)}
            self._ledger.write(line)
