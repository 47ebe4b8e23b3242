"""Keep the active instruction and the active call, and decide what follows a missing call. Pure: no thread or clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rtcontrol.envs.base import Acknowledgement, Emission, Observation
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.loop.ledger import Ledger
from rtcontrol.models.call import Call
from rtcontrol.records import Action, Instruct, LoopReport, Notify, Tick

ECHO = 120  # characters of an instruction that people see
TRIALS = 3  # unsure decisions that refuse a new instruction; with unknown words one is enough
EXAMPLES = 4  # goals that people see if an instruction is not understood
MAX_WAITING = 16  # waiting instructions: one is taken per tick, and the oldest are dropped

# What to do if no fresh call acts.
Measure = Literal["none", "hold", "safe", "stop"]
Status = Literal["fresh", "held", "safe"]


class FallbackPolicy:
    """The fallback policy, which tracks the age of the active call. Times are the world's (`ReleaseGrid.world_ns`), in
    ns.

    Under `hold`, a miss leaves the call active for at most `hold_ns` after the call was last renewed. Then, also
    between two ticks, the safe call is demanded at `expires_ns` (None: no call is held). The policy demands a safe call
    again only after a fresh call acted or a new epoch started; the actuator knows whether it is active.
    """

    def __init__(self, on_miss: str, hold_ns: int) -> None:
        self._on_miss, self.hold_ns = on_miss, hold_ns
        self.limit_ns = hold_ns  # how long the active call may be held
        self.expires_ns: int | None = None
        self.safe = False  # the safe call took over
        self.suspended = False  # operators hold the calls back, so the safe call stays active after any miss

    def renew(self, now_ns: int) -> None:
        """Renew the active call after a fresh decision, which is this call or a null function."""
        self.limit_ns, self.expires_ns = now_ns + self.hold_ns, None

    def fresh_call(self, now_ns: int) -> None:
        """Record that a fresh call was executed, which replaced the safe call."""
        self.limit_ns, self.expires_ns, self.safe = now_ns + self.hold_ns, None, False

    epoch = fresh_call  # in a new world nothing is active, and the hold limit starts here

    def suspend(self, now_ns: int, lasting: bool) -> None:
        """Record that the safe call took over on an operator's command, which still applies (`lasting`) or not any
        more. After a resume no older call may be held."""
        self.suspended, self.safe = lasting, True
        self.limit_ns, self.expires_ns = now_ns, None

    def miss(self, now_ns: int) -> Measure:
        """Return what to do if there is no fresh call."""
        if self.suspended:
            return self._take_over()  # only in a new epoch; otherwise the safe call has taken over
        if self._on_miss == "stop":
            return "stop"
        return self.unsure(now_ns) if self._on_miss == "hold" else self._take_over()

    def unsure(self, now_ns: int) -> Measure:
        """Return what to do if the confidence gate withholds a call: the active call is held, but not renewed."""
        if now_ns < self.limit_ns:
            self.expires_ns = self.limit_ns
            return "hold"
        return self._take_over()

    def expire(self, now_ns: int) -> Measure:
        """Return what to do if the hold limit may be reached."""
        return self._take_over() if self.expires_ns is not None and now_ns >= self.expires_ns else "none"

    def _take_over(self) -> Measure:
        self.expires_ns = None
        if self.safe:
            return "none"
        self.safe = True
        return "safe"


class FallbackState:
    """The fallback policy, and the emissions for an emitting world (`emits`). `last` is the last emitted tick."""

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
        """Return the emission of a tick, or None if the world takes none. `more`: another one may follow."""
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
        """Return the emission of a safe call between two ticks. It belongs to the last emitted tick, else to `tick`."""
        last = self.last or tick
        return None if last is None else self.emission(last, "safe")


class Instructions:
    """The instructions of a run: `now` is active, `proven` is the last one with a decision, `waiting` are to come.
    `refusal` is the last instruction if it was refused, and why. If the agent has `goals` (`GoalTools`), a new
    instruction whose decisions must not act counts as not understood, and the previous instruction is restored."""

    def __init__(self, first: str, out: list[Action], ledger: Ledger, goals: Any = None) -> None:
        self.now = self.proven = first
        self.goals = goals
        self.waiting: deque[str] = deque(maxlen=MAX_WAITING)
        self.refusal: tuple[str, str] | None = None
        self._unsure = 0  # decisions under the new instruction
        self._out, self._ledger = out, ledger

    def start(self, text: str) -> None:
        """Use an instruction from the first release on."""
        self.now = self.proven = text

    def change(self, now_ns: int) -> None:
        """Activate the next waiting instruction."""
        self.refusal, self._unsure = None, 0
        self._use(self.waiting.popleft(), now_ns)
        self._out.append(Notify(f"instruction: {echo(self.now)}"))

    def judge(self, tick: Tick, reply: DecisionReply, unsure: bool, now_ns: int) -> None:
        """Accept a new instruction after its first decision, or refuse it if the decider cannot use it (for example
        because it does not fit) or does not understand it. `unsure`: the decision must not act."""
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
        """Count a failed or withheld decision under the new instruction, and refuse the instruction after enough of
        them. `unknown`: the model never learnt some words."""
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
        """Decide and judge by an instruction from now on."""
        self.now = text
        self._out.append(Instruct(text))
        self._ledger.write({"instruction": text, "t_s": self._ledger.t_s(now_ns), **more})


def echo(text: str) -> str:
    """Return the start of an instruction that people see."""
    return text if len(text) <= ECHO else text[: ECHO - 3] + "..."


class Requests:
    """A maker of decision requests. `history`: the texts of the last calls that acted, according to the world if it
    acknowledges calls, else to the loop. `policy` is set if there is hysteresis, which compares with the call that
    acted last, but not across epochs, instructions or safe calls, nor with a call that a client did not execute."""

    def __init__(self, instructions: Instructions, history: int, policy: FallbackPolicy | None) -> None:
        self.instructions = instructions
        self.history: deque[str] = deque(maxlen=history)
        self._acknowledges = False
        self._policy = policy
        self._call: tuple[int, tuple[int, str], Call] | None = None  # tick, epoch and instruction of that call

    def acknowledge(self, calls: Sequence[Call]) -> None:
        """Add the calls that were executed since the last time according to the world."""
        self._acknowledges = True
        self.history.extend([call.text() for call in calls])

    def acted(self, tick: Tick, call: Call, text: str) -> None:
        """Record that a call of the tick acted."""
        if not self._acknowledges:
            self.history.append(text)
        self._call = tick.k, (tick.epoch, tick.request.instruction), call

    def carried_out(self, acks: Iterable[Acknowledgement]) -> None:
        """Take acknowledgements of a client into account."""
        for ack in acks:
            if self._call is not None and self._call[0] == ack.tick and ack.status != "executed" and ack.why != "safe":
                self._call = None

    def make(self, k: int, observation: Observation, text: str, within_ns: int = 0) -> DecisionRequest:
        """Return the request of tick `k`, to be answered within `within_ns`. `text` is the agent's text."""
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
