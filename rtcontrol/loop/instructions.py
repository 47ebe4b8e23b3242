"""What a decision is requested with: the instruction, a new one on trial, and the calls that acted last. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from rtcontrol.envs.base import Observation
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.loop.fallback import ActiveCall
from rtcontrol.loop.ledger import Ledger
from rtcontrol.models.call import Call
from rtcontrol.records import Action, Instruct, LoopReport, Notify, Tick

ECHO = 120  # people are shown this much of an instruction
TRIALS = 3  # so many unsure decisions refuse a new instruction; one does where it has unknown words
EXAMPLES = 4  # goals that people are shown when an instruction is not understood
MAX_WAITING = 16  # one is taken a tick; the oldest are dropped


class Instructions:
    """`now` is active, `proven` the last one that a decision was made by, `waiting` are to come. `refusal`: the last
    one if it was refused, and why. Where the agent has `goals` (`GoalTools`), a new instruction whose decisions must
    not act is not understood, and the one before is restored."""

    def __init__(self, first: str, out: list[Action], ledger: Ledger, goals: Any = None) -> None:
        self.now = self.proven = first
        self.goals = goals
        self.waiting: deque[str] = deque(maxlen=MAX_WAITING)
        self.refusal: tuple[str, str] | None = None
        self._unsure = 0  # decisions by the new instruction
        self._out, self._ledger = out, ledger

    def start(self, text: str) -> None:
        """Use it from the first release on."""
        self.now = self.proven = text

    def change(self, now_ns: int) -> None:
        """Take the next one that waits."""
        self.refusal, self._unsure = None, 0
        self._use(self.waiting.popleft(), now_ns)
        self._out.append(Notify(f"instruction: {echo(self.now)}"))

    def judge(self, tick: Tick, reply: DecisionReply, unsure: bool, now_ns: int) -> None:
        """Accept a new instruction by its first decision, or refuse it where the decider cannot take it (it does not
        fit, say) or does not understand it. `unsure`: the decision must not act."""
        if self.now == self.proven or tick.request.instruction != self.now:
            return
        decision = reply.decision
        if decision is None and (refusal := reply.mistake) is not None:
            shown = f"instruction refused: {echo(self.now)} ({refusal[0]}) It continues with the one before."
            self._refuse(shown, reply.error or refusal[0], now_ns)
        elif (decision is None or unsure) and self.goals is not None and self.goals.recognise(self.now) is None:
            self._doubt(decision is not None and bool(decision.unknown), now_ns)
        elif decision is not None:
            self._out.append(LoopReport("accepted", self.now))
            self.proven = self.now

    def _doubt(self, unknown: bool, now_ns: int) -> None:
        """A decision by the new instruction failed or must not act; `unknown`: the model never learnt some words."""
        self._unsure += 1
        if unknown or self._unsure >= TRIALS:
            shown = f'"{echo(self.now)}" is not understood, continuing with "{echo(self.proven)}".'
            shown = f"{shown} You can say: {'; '.join(self.goals.examples(EXAMPLES))}."
            self._refuse(shown, shown, now_ns)

    def _refuse(self, shown: str, error: str, now_ns: int) -> None:
        refused = self.now
        self.refusal = refused, shown
        self._use(self.proven, now_ns, refused=echo(refused))
        self._out.append(Notify(shown))
        self._out.append(LoopReport("refused", refused, error))

    def _use(self, text: str, now_ns: int, **more: str) -> None:
        """Decide, and judge, by it from now on."""
        self.now = text
        self._out.append(Instruct(text))
        self._ledger.write({"instruction": text, "t_s": self._ledger.t_s(now_ns), **more})


def echo(text: str) -> str:
    """Return the start of an instruction, as people are shown it."""
    return text if len(text) <= ECHO else text[: ECHO - 3] + "..."


class Requests:
    """Makes requests. `history`: the last calls that acted, as text: by the loop's word, or by the world's where that
    `acknowledges`. `steady`: the active call, where there is hysteresis."""

    def __init__(self, instructions: Instructions, history: int, steady: ActiveCall | None) -> None:
        self.steady = steady
        self.history: deque[str] = deque(maxlen=history)
        self.acknowledges = False
        self.instructions = instructions

    def acknowledge(self, calls: Sequence[Call]) -> None:
        """The world says which calls were executed since the last time."""
        self.acknowledges = True
        self.history.extend([call.text() for call in calls])

    def acted(self, tick: Tick, call: Call, text: str) -> None:
        """A call of the tick acted."""
        if not self.acknowledges:
            self.history.append(text)
        if self.steady is not None:
            self.steady.acted(tick, call)

    def make(self, k: int, observation: Observation, text: str, within_ns: int = 0) -> DecisionRequest:
        """Return the request of tick `k`, to be answered within so long; `text` is the agent's of the observation."""
        instruction = self.instructions.now
        steady = self.steady
        return DecisionRequest(
            k,
            observation.epoch,
            text,
            instruction,
            tuple(self.history),
            observation.data,
            within_ns=within_ns,
            seq=observation.seq,
            captured_ns=observation.t_capture_ns,
            standing=None if steady is None else steady.standing(observation.epoch, instruction),
        )
