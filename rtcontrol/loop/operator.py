"""Control by an operator (a person): pause, resume, stop, and approval of calls. Also the gate for low confidence.

`OperatorState` accepts or rejects a command at once, on the caller's thread. `OperatorGate` handles the command later,
on the loop's thread. Neither reads a clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rtcontrol import records as ev
from rtcontrol.hosts.protocol import DecisionReply
from rtcontrol.loop.active import echo, unknown_words_text
from rtcontrol.loop.ledger import Ledger
from rtcontrol.models.call import Call, Decision

DOUBT_S = 0.5  # an instruction is not understood if unsure decisions took 0.5 s more than sure decisions
COMMANDS = ("pause", "resume", "stop", "confirm", "deny")
READ_NS = 2_000_000_000  # until this time after a call was shown, a yes without a number may be for an older call
NOTHING = "No call waits for approval."
UNREAD = "{0} is a new question: read it, and then answer (/yes {1} or /no {1})."
ANSWERS = {"pause": "paused: the safe call acts until you resume", "resume": "resumed", "stop": "stopped"}

State = Literal["running", "paused", "stopped"]
STATES: dict[str, State] = {"pause": "paused", "resume": "running", "stop": "stopped"}
SUSPENDED, CONTINUED = "SIGTSTP", "SIGCONT"  # recorded as who pauses a run for Ctrl-Z, and who resumes it


class OperatorState:
    """The state that operators control: running, paused, or stopped (which is final).

    At most one call waits for approval. A yes must have the number of the call's tick, or arrive at least READ_NS after
    the call was shown. A pause for Ctrl-Z ends only with `fg`, unless a person pauses the run meanwhile."""

    def __init__(self, wait_ns: int) -> None:
        self.state: State = "running"
        self.paused_by = ""
        self.pending_approval: ev.PendingApproval | None = None
        self._read_ns = min(READ_NS, wait_ns // 2)
        self._shown_ns = 0  # when the pending call was shown to the operator

    def apply(self, command: ev.OperatorCommand) -> tuple[str, ev.OperatorCommand | None]:
        """Apply a command. Return a message about the result, and the command for OperatorGate (None: nothing changed).
        Raises ValueError for an unknown word."""
        word = command.word
        if word not in COMMANDS:
            raise ValueError(f"{word!r} is not a command: use {', '.join(COMMANDS)}")
        if self.state == "stopped":
            return "The run is stopped, which is final.", None
        if word in ("confirm", "deny"):
            return self._answer_approval(command)
        if word == "resume" and (self.paused_by == SUSPENDED) != (command.by == CONTINUED):
            return "Ctrl-Z suspends the run: `fg` resumes it." if self.paused_by == SUSPENDED else "", None
        if STATES[word] == self.state and self.paused_by != SUSPENDED:
            return f"The run is already {self.state}.", None
        self.state = STATES[word]
        self.paused_by = command.by if word == "pause" else ""
        return f"{ANSWERS[word]} ({command.by})", command

    def show_approval(self, question: ev.ShowApproval, now_ns: int) -> None:
        """Set the call that waits for approval, or None if no call waits."""
        self.pending_approval, self._shown_ns = question.approval, now_ns

    def _answer_approval(self, command: ev.OperatorCommand) -> tuple[str, ev.OperatorCommand | None]:
        approval, k = self.pending_approval, command.k
        if approval is None or approval.denied:
            return NOTHING, None
        in_time = k == approval.tick.k or (k is None and command.t_ns - self._shown_ns >= self._read_ns)
        if not in_time and not (k is None and command.word == "deny"):
            return UNREAD.format(approval.call.text(), approval.tick.k), None
        answer = ev.OperatorCommand(command.word, command.by, command.t_ns, approval.tick.k)
        return f"{command.word} ({command.by})", answer


class ConfidenceMonitor:
    """A monitor that notifies user and Listener once if decisions for an instruction keep having low confidence."""

    def __init__(self, hz: float, out: list[ev.Action]) -> None:
        self._ticks = max(1, math.ceil(DOUBT_S * hz))
        self._out = out
        self._instruction: str | None = None
        self._doubt, self._notified = 0, False

    def count_decision(
        self, instruction: str, unsure: bool, unknown: Sequence[str] = (), unfamiliar: Sequence[str] = ()
    ) -> None:
        """Count a decision. `unsure`: its confidence is too low to act. `unknown`: words of the instruction that are
        not in the training data. `unfamiliar`: parts of the observation that no observation in training had."""
        if instruction != self._instruction:
            self._instruction, self._doubt, self._notified = instruction, 0, False
        self._doubt = self._doubt + 1 if unsure else max(0, self._doubt - 1)
        if self._doubt < self._ticks or self._notified:
            return
        self._notified = True
        if unfamiliar:
            text = f"The decisions are held: {unfamiliar_text(unfamiliar)}."
            self._out.append(ev.Notify(text))
            self._out.append(ev.LoopReport("unfamiliar", instruction, text))
        else:
            reason = f"{unknown_words_text(unknown)}, and " if unknown else ""
            text = f'"{echo(instruction)}" is not understood: {reason}the decisions are too unsure to act.'
            self._out.append(ev.Notify(f"{text} Try other words: /goals lists what can be said."))
            self._out.append(ev.LoopReport("doubted", instruction, text))


def unfamiliar_text(reasons: Sequence[str]) -> str:
    """Return a text for the user with the reasons why the observation is unlike those of the model's training."""
    return f"the observation is unlike those of training: {'; '.join(reasons)}"


class OperatorGate:
    """The gate on the loop's thread that withholds decisions: while the run is paused, with low confidence, and calls
    that need approval.

    A call may act only if `state` is running and the call was requested after `open_ns`, the last resume. While a call
    waits for approval, or was denied and has not expired, other calls of the tools `confirm_tools` are withheld.
    `doubt` returns which confidence of a decision is too low, or None."""

    def __init__(
        self,
        out: list[ev.Action],
        ledger: Ledger,
        doubt: Callable[[Decision], ev.LowConfidence | None] | None,
        confirm_tools: frozenset[str],
        wait_ns: int,
        monitor: ConfidenceMonitor,
    ) -> None:
        self.state: State = "running"
        self.open_ns = 0
        self.pending_approval: ev.PendingApproval | None = None
        self.has_checks = bool(confirm_tools or doubt is not None)
        self._out, self._ledger, self._doubt = out, ledger, doubt
        self._confirm_tools, self._wait_ns, self._monitor = confirm_tools, wait_ns, monitor

    def is_unsure(self, decision: Decision) -> bool:
        """Return whether the confidence gate withholds the decision."""
        return self._doubt is not None and self._doubt(decision) is not None

    def reason_to_hold(
        self, tick: ev.Tick, decision: Decision
    ) -> Literal["state", "confidence", "unfamiliar", "confirm"] | None:
        """Return why the call of a decision must not act, or not without an approval. Return None if it may act."""
        if self.state != "running" or (tick.requested_ns or tick.woke_ns) < self.open_ns:
            return "state"
        if not self.has_checks:
            return None
        unsure = self.is_unsure(decision)
        if not tick.calls:
            self._monitor.count_decision(tick.request.instruction, unsure, decision.unknown, decision.unfamiliar)
        if unsure:
            return "unfamiliar" if decision.unfamiliar else "confidence"
        return "confirm" if decision.call is not None and decision.call.name in self._confirm_tools else None

    def request_approval(self, tick: ev.Tick, reply: DecisionReply, call: Call, now_ns: int) -> None:
        """Ask the operator to approve a call. Do nothing if another call is waiting for approval."""
        if self.pending_approval is not None:
            return
        seconds = self._wait_ns / 1e9
        self.pending_approval = ev.PendingApproval(tick, reply, call, now_ns, now_ns + self._wait_ns)
        self._out.append(ev.ShowApproval(self.pending_approval))
        line = {"people": "ask", "k": tick.k, "call": call.text(), "t_s": self._ledger.t_s(now_ns)}
        self._ledger.write({**line, "seconds": seconds})
        self._out.append(ev.Notify(f"approve {call.text()}? /yes {tick.k} or /no {tick.k} within {seconds:g} s"))
        self._out.append(ev.LoopReport("changed"))

    def handle_command(self, command: ev.OperatorCommand, now_ns: int) -> ev.PendingApproval | None:
        """Handle a command. Return the call that the command approves, or None."""
        word, approval = command.word, self.pending_approval
        line: dict[str, Any] = {"people": word, "by": command.by, "t_s": self._ledger.t_s(command.t_ns)}
        confirmed = None
        if word in STATES:
            self.state = STATES[word]
            self.open_ns = command.t_ns if word == "resume" else self.open_ns
        elif approval is None or approval.denied or approval.tick.k != command.k or command.t_ns > approval.expires_ns:
            line |= {"k": command.k, "void": True}
            late = f"{word} ({command.by}) came too late: the call of tick {command.k} was already refused"
            self._out.append(ev.Notify(late))
        else:
            line |= {"k": command.k, "call": approval.call.text()}
            approval.denied = word == "deny"
            confirmed = approval if word == "confirm" else None
        self._ledger.write(line)
        if confirmed is not None:
            self.pending_approval = None
            self._out.append(ev.ShowApproval(None))
            confirmed.tick.waited_ns = now_ns - confirmed.requested_ns
        elif word in ("pause", "stop"):
            self.drop_approval(now_ns)
        return confirmed

    def expire_approval(self, now_ns: int) -> None:
        """Refuse the call that waits for approval if its time limit has passed."""
        if (approval := self.pending_approval) is not None and now_ns > approval.expires_ns:
            if not approval.denied:
                self._out.append(ev.Notify(f"{approval.call.text()} is refused: it was not confirmed in time"))
            self.drop_approval(now_ns)

    def drop_approval(self, now_ns: int) -> None:
        """Drop the call that waits for approval, if any."""
        approval, self.pending_approval = self.pending_approval, None
        if approval is None:
            return
        text = approval.call.text()
        self._out.append(ev.ShowApproval(None))
        if not approval.denied:
            line = {"people": "unanswered", "k": approval.tick.k, "call": text, "t_s": self._ledger.t_s(now_ns)}
            self._ledger.write(line)
