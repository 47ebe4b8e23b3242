"""What is active: the instruction, and the call, how long that is held and what acts after it. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rtcontrol.envs.base import Acknowledgement, Emission, Observation
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.loop.ledger import Ledger
from rtcontrol.models.call import Call
from rtcontrol.records import Action, Instruct, LoopReport, Notify, Tick

ECHO = 120  # people are shown this much of an instruction
TRIALS = 3  # so many unsure decisions refuse a new instruction; one does where it has unknown words
EXAMPLES = 4  # goals that people are shown when an instruction is not understood
MAX_WAITING = 16  # one is taken a tick; the oldest are dropped

# What to do where no fresh call acts.
Measure = Literal["none", "hold", "safe", "stop"]
Status = Literal["fresh", "held", "safe"]


class FallbackPolicy:
    """Keeps the age of the active call. Times are the world's (`ReleaseGrid.world_ns`), in nanoseconds.

    Under `hold`, a miss leaves the call active until it has not been renewed for `hold_ns`; then the safe call is
    demanded, also between two ticks: at `expires_ns` (None: no call is being held). It is not demanded again until a
    fresh call acted or a new epoch started; whether it is active is the actuator's to say.
    """

    def __init__(self, on_miss: str, hold_ns: int) -> None:
        self._on_miss, self.hold_ns = on_miss, hold_ns
        self.limit_ns = hold_ns  # until then the active call may be held
        self.expires_ns: int | None = None
        self.safe = False  # the safe call took over
        self.suspended = False  # people hold the calls back: the safe call is active, whatever is missed

    def renew(self, now_ns: int) -> None:
        """A fresh decision was made: its call, or the null function's consent to the active call."""
        self.limit_ns, self.expires_ns = now_ns + self.hold_ns, None

    def fresh_call(self, now_ns: int) -> None:
        """A fresh call was executed; the safe call is no longer active."""
        self.limit_ns, self.expires_ns, self.safe = now_ns + self.hold_ns, None, False

    epoch = fresh_call  # a new world: nothing is active, and the hold limit runs from here

    def suspend(self, now_ns: int, lasting: bool) -> None:
        """The safe call took over at a person's word, which still holds (`lasting`) or not any more; after a resume
        nothing older may be held."""
        self.suspended, self.safe = lasting, True
        self.limit_ns, self.expires_ns = now_ns, None

    def miss(self, now_ns: int) -> Measure:
        """Return what to do where there is no fresh call."""
        if self.suspended:
            return self._take_over()  # in a new epoch; else it has
        if self._on_miss == "stop":
            return "stop"
        return self.unsure(now_ns) if self._on_miss == "hold" else self._take_over()

    def unsure(self, now_ns: int) -> Measure:
        """Return what to do where the confidence gate withholds a call: the active one is held, but not renewed."""
        if now_ns < self.limit_ns:
            self.expires_ns = self.limit_ns
            return "hold"
        return self._take_over()

    def expire(self, now_ns: int) -> Measure:
        """Return what to do where the hold limit may be reached."""
        return self._take_over() if self.expires_ns is not None and now_ns >= self.expires_ns else "none"

    def _take_over(self) -> Measure:
        self.expires_ns = None
        if self.safe:
            return "none"
        self.safe = True
        return "safe"


class FallbackState:
    """The policy, and what an emitting world (`emits`) receives of each tick. `last`: the last tick emitted."""

    def __init__(self, policy: FallbackPolicy, emits: bool, safe_calls: tuple[Call, ...]) -> None:
        self.policy = policy
        self.emits = emits
        self.last: Tick | None = None
        self._safe_calls = safe_calls

    def emission(
        self,
        tick: Tick,
        status: Status,
        call: Call | None = None,
        reply: DecisionReply | None = None,
        cause: str | None = None,
        error: str | None = None,
        more: bool = False,
    ) -> Emission | None:
        """Return a tick's emission; None where the world takes none. `more`: another one of the tick may follow."""
        self.last = tick
        if not self.emits:
            return None
        decision = None if reply is None else reply.decision
        safe_calls = self._safe_calls if status == "safe" else ()
        return Emission(
            tick=tick.k,
            epoch=tick.epoch,
            seq=tick.seq,
            deadline_ns=tick.deadline_ns,
            status=status,
            call=next(iter(safe_calls), call),
            confidence=None if decision is None else min(decision.confidence.values(), default=None),
            decide_ns=None if reply is None else reply.decide_ns,
            cause=cause,
            error=error,
            safe_calls=safe_calls,
            mistake=None if reply is None else reply.mistake,
            waited_ns=tick.waited_ns + (0 if reply is None else reply.ahead_ns),
            n=len(tick.calls),
            more=more,
        )

    def parting(self, tick: Tick | None = None) -> Emission | None:
        """Return the emission of a safe call between two ticks: it is of the last tick, else of this one."""
        last = self.last or tick
        return None if last is None else self.emission(last, "safe")


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
    acknowledges them. `policy`: where there is hysteresis. That compares with the call that acted last, but not of
    another epoch or instruction, nor one that a client did not carry out, nor after a safe call."""

    def __init__(self, instructions: Instructions, history: int, policy: FallbackPolicy | None) -> None:
        self.instructions = instructions
        self.history: deque[str] = deque(maxlen=history)
        self._acknowledges = False
        self._policy = policy
        self._call: tuple[int, tuple[int, str], Call] | None = None  # tick, epoch and instruction

    def acknowledge(self, calls: Sequence[Call]) -> None:
        """The world says which calls were executed since the last time."""
        self._acknowledges = True
        self.history.extend([call.text() for call in calls])

    def acted(self, tick: Tick, call: Call, text: str) -> None:
        """A call of the tick acted."""
        if not self._acknowledges:
            self.history.append(text)
        self._call = tick.k, (tick.epoch, tick.request.instruction), call

    def carried_out(self, acks: Iterable[Acknowledgement]) -> None:
        """A client acknowledged calls."""
        for ack in acks:
            if self._call is not None and self._call[0] == ack.tick and ack.status != "executed" and ack.why != "safe":
                self._call = None

    def make(self, k: int, observation: Observation, text: str, within_ns: int = 0) -> DecisionRequest:
        """Return the request of tick `k`, to be answered within so long; `text` is the agent's of the observation."""
        instruction, policy = self.instructions.now, self._policy
        if policy is not None and policy.safe:
            self._call = None
        stands = policy is not None and self._call is not None and self._call[1] == (observation.epoch, instruction)
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
            standing=self._call[2] if stands and self._call is not None else None,
        )
