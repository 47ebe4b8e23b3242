"""What is decided by: the instruction, new ones on trial, and the calls that acted last. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from rtcontrol.envs.base import Observation
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.loop.call_in_force import CallInForce
from rtcontrol.loop.ledger import Ledger
from rtcontrol.models.call import Call
from rtcontrol.records import Action, Instruct, LoopReport, Notify, Tick

# People are shown this much of an instruction.
ECHO = 120
# A new instruction whose decisions are unsure gives way after so many, and at once where it has unknown words.
TRIALS = 3
# Goals that people are shown when an instruction is not understood.
EXAMPLES = 4
# One is taken a tick; of more than this between two ticks, the oldest give way.
MAX_WAITING = 16


class GoalList(Protocol):
    """The goals that an agent has, where it lists them."""

    @property
    def kinds(self) -> Sequence[Any]: ...

    def recognise(self, text: str, /) -> Any:
        """Return the goal of a sentence; None where it is none."""

    def examples(self, most: int, /) -> Sequence[str]: ...


class Instructions:
    """`now` is active, `proven` the last one that something was decided by, `waiting` are to come. `refusal` is the
    last one where it was not taken, and why. Where the agent has `goals`, a new instruction whose decisions must not
    act is not understood, and gives way."""

    def __init__(self, first: str, out: list[Action], ledger: Ledger, goals: GoalList | None = None) -> None:
        self.now = self.proven = first
        self.goals = goals
        self.waiting: deque[str] = deque(maxlen=MAX_WAITING)
        self.refusal: tuple[str, str] | None = None
        self._unsure = 0  # decisions by the new instruction
        self._out, self._ledger = out, ledger

    def begin(self, text: str) -> None:
        """The run begins with it."""
        self.now = self.proven = text

    def change(self, now_ns: int) -> None:
        """Take the next one that waits, if any: from now on it is decided and judged by."""
        if not self.waiting:
            return
        self.now = self.waiting.popleft()
        self.refusal, self._unsure = None, 0
        self._out.append(Instruct(self.now))
        self._ledger.write({"instruction": self.now, "t_s": self._ledger.t_s(now_ns)})
        self._out.append(Notify(f"instruction: {echo(self.now)}"))

    def judge(self, tick: Tick, reply: DecisionReply, unsure: bool, now_ns: int) -> None:
        """Let a new instruction that the decider cannot take (it does not fit, say), or does not understand, give way
        to the last good one. `unsure`: the decision must not act."""
        if self.now == self.proven or tick.request.instruction != self.now:
            return
        decision = reply.decision
        if decision is None and reply.mistake is not None:
            what = reply.mistake[0]
            shown = f"instruction refused: {echo(self.now)} ({what}) It goes on by the one before."
            self._give_way(shown, reply.error or what, now_ns)
        elif (decision is None or unsure) and self._unlisted():
            self._doubt(decision is not None and bool(decision.unknown), now_ns)
        elif decision is not None:
            self._out.append(LoopReport("accepted", self.now))
            self.proven = self.now

    def _unlisted(self) -> bool:
        return self.goals is not None and self.goals.recognise(self.now) is None

    def _doubt(self, unknown: bool, now_ns: int) -> None:
        """A decision by the new instruction failed or must not act; `unknown`: some of its words were never taught."""
        assert self.goals is not None, "without goals nothing is doubted"
        self._unsure += 1
        if unknown or self._unsure >= TRIALS:
            shown = f'"{echo(self.now)}" is not understood, continuing with "{echo(self.proven)}".'
            shown = f"{shown} You can say: {'; '.join(self.goals.examples(EXAMPLES))}."
            self._give_way(shown, shown, now_ns)

    def _give_way(self, shown: str, error: str, now_ns: int) -> None:
        refused, self.now = self.now, self.proven
        self.refusal = refused, shown
        self._out.append(Instruct(self.now))
        line = {"instruction": self.now, "t_s": self._ledger.t_s(now_ns), "refused": echo(refused)}
        self._ledger.write(line)
        self._out.append(Notify(shown))
        self._out.append(LoopReport("refused", refused, error))


def echo(text: str) -> str:
    """Return an instruction as people are shown it: its beginning."""
    return text if len(text) <= ECHO else text[: ECHO - 3] + "..."


class Requests:
    """Makes requests. `history` holds the last calls that acted, as text: by the loop's word, or by the world's where
    that `acknowledges`; `steady` is the call in force, where there is hysteresis."""

    def __init__(self, instructions: Instructions, most: int, steady: CallInForce | None) -> None:
        self.steady = steady
        self.history: deque[str] = deque(maxlen=most)
        self.acknowledges = False
        self.instructions = instructions

    def acknowledge(self, calls: Sequence[Call] | None) -> None:
        """The world says which calls were executed since the last time; None: it says nothing of them."""
        if calls is not None:
            self.acknowledges = True
            self.history.extend([call.text() for call in calls])

    def acted(self, tick: Tick, call: Call, text: str) -> None:
        """A call of the tick acted."""
        if not self.acknowledges:
            self.history.append(text)
        if self.steady is not None:
            self.steady.acted(tick, call)

    def make(self, k: int, seen: Observation, text: str, within_ns: int = 0) -> DecisionRequest:
        """Return the request of tick `k`, to be answered within so long; `text` is the agent's of the observation."""
        instruction = self.instructions.now
        standing = None if self.steady is None else self.steady.standing(seen.epoch, instruction)
        return DecisionRequest(
            k,
            seen.epoch,
            text,
            instruction,
            tuple(self.history),
            seen.data,
            within_ns=within_ns,
            seq=seen.seq,
            captured_ns=seen.t_capture_ns,
            standing=standing,
        )
