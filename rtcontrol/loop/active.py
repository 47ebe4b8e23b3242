"""The active instruction, the fallback policy after a miss, and builders of emissions and decision requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rtcontrol.envs.base import Acknowledgement, Emission, Observation
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.loop.ledger import Ledger
from rtcontrol.models.call import Call, Decision
from rtcontrol.records import Action, Instruct, LoopReport, Notify, Tick

ECHO = 120  # messages show at most this number of characters of an instruction
TRIALS = 3  # a new instruction is refused after 3 unsure decisions (with unknown words after 1)
NAMED = 3  # maximum number of unknown words that a message lists
EXAMPLES = 4  # number of goals that are shown if an instruction is not understood
MAX_WAITING = 16  # maximum number of queued instructions; each tick takes one; a full queue drops the oldest

# The reaction to a miss: do nothing, hold the active call, demand the safe calls, or stop the run.
Measure = Literal["none", "hold", "safe", "stop"]
Status = Literal["fresh", "held", "safe"]


class FallbackPolicy:
    """The policy that decides after a miss whether the active call continues (is held), or the safe calls must act.

    With `on_miss="hold"`, the active call continues for at most `hold_ns` after the last decision in time. Then, at
    `expires_ns` (None: no call is held), the policy demands the safe calls, even between two ticks. It demands them
    again only after a fresh call acted or a new epoch started. All times are nanoseconds of `ReleaseGrid.world_ns`.
    """

    def __init__(self, on_miss: str, hold_ns: int) -> None:
        self._on_miss, self.hold_ns = on_miss, hold_ns
        self.limit_ns = hold_ns  # the instant until which the active call may be held
        self.expires_ns: int | None = None
        self.safe = False  # True after a demand for the safe calls, until a fresh call acts
        self.suspended = False  # True while an operator has paused or stopped the run

    def renew_hold(self, now_ns: int) -> None:
        """Restart the hold limit, because a decision in time confirmed the active call."""
        self.limit_ns, self.expires_ns = now_ns + self.hold_ns, None

    def record_fresh_call(self, now_ns: int) -> None:
        """Record that a fresh call was executed, which replaces active safe calls."""
        self.limit_ns, self.expires_ns, self.safe = now_ns + self.hold_ns, None, False

    start_epoch = record_fresh_call  # a new epoch resets the active call and the hold limit in the same way

    def record_pause(self, now_ns: int, lasting: bool) -> None:
        """Record that an operator's pause or stop demanded the safe calls. The active call must not be held. `lasting`:
        the run is still paused or stopped."""
        self.suspended, self.safe = lasting, True
        self.limit_ns, self.expires_ns = now_ns, None

    def record_miss(self, now_ns: int) -> Measure:
        """Record a miss, and return the measure for it."""
        if self.suspended:
            return self._demand_once()  # returns "none" unless a new epoch has started
        if self._on_miss == "stop":
            return "stop"
        return self.record_held_call(now_ns) if self._on_miss == "hold" else self._demand_once()

    def record_held_call(self, now_ns: int) -> Measure:
        """Record that a gate withheld a call, and return the measure for it. This does not restart the hold limit."""
        if now_ns < self.limit_ns:
            self.expires_ns = self.limit_ns
            return "hold"
        return self._demand_once()

    def check_hold_limit(self, now_ns: int) -> Measure:
        """Return "safe" if the hold limit of the active call has passed, else "none"."""
        return self._demand_once() if self.expires_ns is not None and now_ns >= self.expires_ns else "none"

    def _demand_once(self) -> Measure:
        """Return "safe" to demand the safe calls, or "none" if they were already demanded."""
        self.expires_ns = None
        if self.safe:
            return "none"
        self.safe = True
        return "safe"


class EmissionBuilder:
    """A builder of emissions (the results of ticks, for an environment that `emits`). `last`: the last emitted tick."""

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
        """Return the emission of a tick, or None if the environment takes none. `more`: the tick may have another."""
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
            input_error=None if reply is None else reply.user_error,
            waited_ns=tick.waited_ns + (0 if reply is None else reply.ahead_ns),
            n=len(tick.calls),
            more=more,
        )

    def safe_emission(self, tick: Tick | None = None) -> Emission | None:
        """Return the emission of the safe calls between two ticks, with the number of the last emitted tick. If nothing
        was emitted yet, use the number of `tick`."""
        last = self.last or tick
        return None if last is None else self.emission(last, "safe")


class Instructions:
    """The active instruction `now`, the last accepted instruction `proven`, and `waiting`, a queue of new instructions.

    A new instruction that the decider cannot use is refused; then `proven` becomes active again, and `refusal` has the
    refused text and the reason. `goals`: the agent's goals (a GoalTools), which show whether a text names a goal."""

    def __init__(self, first: str, out: list[Action], ledger: Ledger, goals: Any = None) -> None:
        self.now = self.proven = first
        self.goals = goals
        self.waiting: deque[str] = deque(maxlen=MAX_WAITING)
        self.refusal: tuple[str, str] | None = None
        self._unsure = 0  # number of failed or unsure decisions since the new instruction
        self._out, self._ledger = out, ledger

    def start(self, text: str) -> None:
        """Set the first instruction of the run."""
        self.now = self.proven = text

    def activate_next(self, now_ns: int) -> None:
        """Activate the next waiting instruction."""
        self.refusal, self._unsure = None, 0
        self._activate_instruction(self.waiting.popleft(), now_ns)
        self._out.append(Notify(f"instruction: {echo(self.now)}"))

    def evaluate(self, tick: Tick, reply: DecisionReply, unsure: bool, now_ns: int) -> None:
        """Accept or refuse a new instruction, by the decision for it. Refuse an instruction that the decider cannot use
        (for example because it is too long) or does not understand. `unsure`: the decision has low confidence."""
        if self.now == self.proven or tick.request.instruction != self.now:
            return
        decision = reply.decision
        if decision is None and (refusal := reply.user_error) is not None:
            shown = f"instruction refused: {echo(self.now)} ({refusal[0]}) The previous instruction stays active."
            self._refuse(shown, reply.error or refusal[0], now_ns)
        elif (decision is None or unsure) and self._may_be_misunderstood(decision):
            self._count_doubt(() if decision is None else decision.unknown, now_ns)
        elif decision is not None:
            self._out.append(LoopReport("accepted", self.now))
            self.proven = self.now

    def _may_be_misunderstood(self, decision: Decision | None) -> bool:
        """Return whether low confidence may be due to the instruction, which has words that the model does not know, or
        names none of the agent's goals."""
        if decision is not None and decision.unknown:
            return True
        return self.goals is not None and self.goals.recognise(self.now) is None

    def _count_doubt(self, unknown: Sequence[str], now_ns: int) -> None:
        """Count a failed or withheld decision under the new instruction. Refuse the instruction after TRIALS of them,
        or at once if the instruction has `unknown` words (words that are not in the model's training data)."""
        self._unsure += 1
        if unknown or self._unsure >= TRIALS:
            reason = f" ({unknown_words_text(unknown)})" if unknown else ""
            shown = f'"{echo(self.now)}" is not understood{reason}, so "{echo(self.proven)}" stays active.'
            if self.goals is not None:
                shown = f"{shown} You can say: {'; '.join(self.goals.examples(EXAMPLES))}."
            self._refuse(shown, shown, now_ns)

    def _refuse(self, shown: str, error: str, now_ns: int) -> None:
        refused = self.now
        self.refusal = refused, shown
        self._activate_instruction(self.proven, now_ns, refused=echo(refused))
        self._out.append(Notify(shown))
        self._out.append(LoopReport("refused", refused, error))

    def _activate_instruction(self, text: str, now_ns: int, **more: str) -> None:
        """Make an instruction active, pass it to the environment, and record it with the fields `more`."""
        self.now = text
        self._out.append(Instruct(text))
        self._ledger.write({"instruction": text, "t_s": self._ledger.t_s(now_ns), **more})


def echo(text: str) -> str:
    """Return an instruction, shortened to ECHO characters for messages."""
    return text if len(text) <= ECHO else text[: ECHO - 3] + "..."


def unknown_words_text(unknown: Sequence[str]) -> str:
    """Return a text for the user that lists words and numbers that are not in the model's training data."""
    named = ", ".join(f'"{echo(word)}"' for word in unknown[:NAMED])
    more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
    return f"the model does not know {named}{more}"


class RequestBuilder:
    """A builder of decision requests. `history`: the texts of the last executed calls, as the environment acknowledged
    them or, without acknowledgements, as the loop recorded them. `policy`: the fallback policy if hysteresis is
    enabled, else None.

    Hysteresis uses the last call that acted, unless the epoch or instruction has changed, the safe calls have acted, or
    the client reported that it did not execute the call."""

    def __init__(self, instructions: Instructions, history: int, policy: FallbackPolicy | None) -> None:
        self.instructions = instructions
        self.history: deque[str] = deque(maxlen=history)
        self._acknowledges = False
        self._policy = policy
        self._call: tuple[int, tuple[int, str], Call] | None = None  # (tick, (epoch, instruction), last acting call)

    def acknowledge(self, calls: Sequence[Call]) -> None:
        """Append to the history calls that the environment reported as executed."""
        self._acknowledges = True
        self.history.extend([call.text() for call in calls])

    def record_acted(self, tick: Tick, call: Call, text: str) -> None:
        """Record that a call of the tick acted, for the history and for hysteresis."""
        if not self._acknowledges:
            self.history.append(text)
        self._call = tick.k, (tick.epoch, tick.request.instruction), call

    def check_acknowledgements(self, acks: Iterable[Acknowledgement]) -> None:
        """Do not use the last call for hysteresis if an acknowledgement reports that the client did not execute it."""
        for ack in acks:
            if self._call is not None and self._call[0] == ack.tick and ack.status != "executed" and ack.why != "safe":
                self._call = None

    def build_request(self, k: int, observation: Observation, text: str, within_ns: int = 0) -> DecisionRequest:
        """Return the request of tick `k`, with a timeout of `within_ns` (0: none). `text`: the observation as text."""
        instruction, policy = self.instructions.now, self._policy
        if policy is not None and policy.safe:
            self._call = None
        active = policy is not None and self._call is not None and self._call[1] == (observation.epoch, instruction)
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
            active_call=self._call[2] if active and self._call is not None else None,
        )
