"""A rig for the loop's core with a simulated clock, decider, actuator and world. All instants are exact, nothing
waits."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol import records as ev
from rtcontrol.envs.base import Emission, Episode, Observation
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.loop.core import EVENT_HANDLERS, LoopCore, LoopSettings, Rules
from rtcontrol.loop.grid import ReleaseGrid, StepGrid, WallGrid
from rtcontrol.loop.operator import OperatorState
from rtcontrol.models.call import Call, Decision
from rtcontrol.records import Command, Completion, EvidenceSample, HostChanged, OperatorCommand, SafeAttempt

MS = 1_000_000
START_NS = 1_000 * MS
GO, STOP, GRIP = Call("go", {"speed": 1}), Call("go", {"speed": 0}), Call("grip", {"closed": 1})


@dataclass
class Answer:
    """The answer of a decider to a request: after `ms`, a decision or an error; None: no answer."""

    decision: Decision | None = None
    ms: float | None = 5.0
    error: str | None = None
    gaps: tuple[tuple[int, int], ...] = ()
    begun_ms: float = 0.0
    more: dict[str, Any] | None = None


def go(speed: int = 1, sure: float = 1.0) -> Decision:
    return Decision(Call("go", {"speed": speed}), {"function": sure})


Decide = Callable[[DecisionRequest], Answer]


def check(call: Call) -> tuple[Call, str]:
    """Return a call if it is legal: `go` at 0 to 9, or `grip`."""
    if call.name == "go" and call.arguments["speed"] not in range(10):
        raise ValueError(f"speed={call.arguments['speed']} is not legal")
    return call, call.text()


class Rig:
    """A run of a core at 20 ms a period. Times are milliseconds from release 0 on.

    `decide` answers requests; `act_ms` is how long each call takes (an exception: it raises), `safe_fails` how many
    attempts of the safe call fail. `look` returns the observation at an instant (None: nothing yet).
    """

    def __init__(
        self,
        decide: Decide = lambda request: Answer(go()),
        *,
        clock: str = "wall",
        period_ms: float = 20.0,
        doubt: Any = None,
        confirm: tuple[str, ...] = (),
        goals: Any = None,
        history: int = 3,
        **settings: Any,
    ) -> None:
        period_ns = round(period_ms * MS)
        given: dict[str, Any] = {"deadline_ns": period_ns, "max_age_ns": 10 * period_ns, "hold_ns": 500 * MS}
        given |= {"instruction": "on", "hz": 1e9 / period_ns, "period_ns": period_ns, "cut_late_calls": clock == "wall"}
        rules = Rules(
            check=check,
            describe=lambda error: (f"{type(error).__name__}: {error}", None),
            plain=dict,
            safe_calls=(STOP,),
            doubt=doubt,
            confirm=frozenset(confirm),
            history=history,
            goals=goals,
        )
        grid: ReleaseGrid = WallGrid(period_ns) if clock == "wall" else StepGrid(period_ns, clock)  # type: ignore[arg-type]
        self.core = LoopCore(LoopSettings(**{**given, **settings}), rules, grid)
        self.decide = decide
        self.now_ns = START_NS
        self.lines: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.actions: list[ev.Action] = []  # all of them
        self.acts: list[tuple[float, str]] = []
        self.requests: list[DecisionRequest] = []
        self.emissions: list[Emission] = []
        self.desk = OperatorState(self.core.settings.confirm_ns)
        self.finished = False
        self.episodes: list[Episode] = []
        self.epoch, self.age_ms = 1, 1.0
        self.look: Callable[[float], Any] = lambda ms: {"x": ms}
        self.read: Callable[[Any], str] = lambda data: "x"
        self.act_ms: Callable[[Call], float | BaseException] = lambda call: 0.1
        self.safe_fails = 0
        self.shut: str | None = None
        self.sample = EvidenceSample()
        self.heard: deque[Any] | None = None
        self.acknowledged: Any = None
        self.wakes: dict[int, float] = {}  # by release: so late the loop wakes
        self.runs: Callable[[float], tuple[bytes, ...]] = lambda ms: ()
        self.seq = itertools.count()
        self._heap: list[tuple[int, int, Callable[[], Any]]] = []
        self._n = itertools.count()
        self._host = HostChanged()
        self._waiting: Command | None = None
        self._acting_until = 0
        self._demand = self._attempt = 0
        self._wanted = False
        self._world_ns = 0

    # -- what happens --------------------------------------------------------------------------------------------------

    @property
    def ms(self) -> float:
        t0_ns = self.core.ledger.t0_ns or START_NS
        return round((self.now_ns - t0_ns) / MS, 4)

    def at(self, ms: float, act: Callable[[], Any]) -> Rig:
        """Call a function at a time, and pass the event that it returns, if any, to the core."""
        self._put(START_NS + MS + round(ms * MS), act)
        return self

    def host(self, **state: Any) -> HostChanged:
        self._host = replace(self._host, **state)
        return self._host

    def keep_busy(self, until_ms: float) -> None:
        """Keep the world busy until a time, so that calls wait."""
        self._acting_until = START_NS + MS + round(until_ms * MS)
        self._put(self._acting_until, self._begin)

    def drop(self, effect: Any) -> Completion:
        """Drop the call that waits."""
        command, self._waiting = self._waiting, None
        assert command is not None
        return Completion(command.tick, effect, self.now_ns, self.now_ns, False)

    def say(self, said: str, k: int | None = None) -> str:
        """Give an operator's command, and shut the actuator at once, as the shell does."""
        answer, command = self.desk.apply(OperatorCommand(said, "page", self.now_ns, k))
        if command is not None:
            if said in ("pause", "stop"):
                self.shut = self.desk.state
                self._cleared("refused")
                self._safe(said, None)
            elif said == "resume":
                self.shut = None
            self._dispatch(command)
        return answer

    def run(self, ms: float) -> Rig:
        """Run until a time, and then end as a real run does."""
        until_ns = START_NS + MS + round(ms * MS)
        self._dispatch(ev.TimerFired())
        while not self.core.world.stopped:
            wake_ns = self.core.wake_ns
            nxt = self._heap[0][0] if self._heap else until_ns
            if wake_ns is not None and wake_ns <= nxt:
                nxt = max(wake_ns, self.now_ns)
                nxt += round(self.wakes.pop(round((nxt - START_NS - MS) / MS), 0.0) * MS)
                if nxt >= until_ns:
                    break
                self.now_ns = nxt
                self._dispatch(ev.TimerFired())
            elif nxt >= until_ns:
                break
            else:
                self.now_ns = max(nxt, self.now_ns)
                event = heapq.heappop(self._heap)[2]()
                if type(event) in EVENT_HANDLERS:
                    self._dispatch(event)
                if not self.core.grid.enforced:
                    self._dispatch(ev.TimerFired())
        end_ns = max(self.now_ns, until_ns) if not self.core.world.stopped else self.now_ns
        self.now_ns = end_ns
        self._dispatch(ev.ExitStarted())
        self._settle_safe()
        self._dispatch(ev.OverdueRelease(end_ns, self.sample, self.runs(self.ms)))
        self._dispatch(ev.RunClosed(self.episodes, self.heard))
        return self

    def _put(self, t_ns: int, act: Callable[[], Any]) -> None:
        heapq.heappush(self._heap, (t_ns, next(self._n), act))

    def _dispatch(self, event: ev.Event) -> None:
        events = deque([event])
        while events:
            for action in self.core.advance(events.popleft(), self.now_ns):
                self.actions.append(action)
                if (answer := self._do(action)) is not None:
                    events.append(answer)

    def _do(self, action: ev.Action) -> ev.Event:
        match action:
            case ev.RecordLine(line):
                self.lines.append(line)
            case ev.Notify(text):
                self.notes.append(text)
            case ev.Observe(since):
                data = self.look(self.ms)
                age_ns = round(self.age_ms * MS)
                seen = None if data is None else Observation(next(self.seq), self.epoch, self.now_ns - age_ns, data)
                sample = EvidenceSample() if since is None else self.sample
                event = ev.ObserveResult(seen, self.finished, self.runs(self.ms), self.heard, sample, self.episodes)
                event.acknowledged = self.acknowledged
                try:
                    event.text = self.read(data)
                except Exception as error:
                    event.error = error
                return event
            case DecisionRequest():
                return self._ask(action)
            case ev.TakeSample(k, _):
                return ev.SampleResult(k, replace(self.sample, t_ns=self.now_ns))
            case ev.AdvanceWorld(dt_ns):
                self._world_ns += dt_ns
                return ev.AdvanceResult(self.now_ns)
            case Command():
                return self._execute(action)
            case ev.WithdrawCall(k):
                dropped = self._waiting is not None and self._waiting.tick == k
                self._waiting = None if dropped else self._waiting
                return ev.WithdrawResult(k, dropped)
            case ev.DemandSafeCalls(why, emission):
                cleared, self._waiting = self._waiting, None
                self._safe(why, emission)
                return None if cleared is None else ev.CallPreempted(cleared.tick, "safe")
            case ev.RetrySafeCalls():
                self._put(self.now_ns, self._try_safe)
            case Emission():
                self.emissions.append(action)
            case ev.ShowApproval():
                self.desk.show_approval(action, self.now_ns)
        return None

    # -- the decider and the actuator ----------------------------------------------------------------------------------

    def _ask(self, request: DecisionRequest) -> ev.SendResult:
        self.requests.append(request)
        try:
            answer = self.decide(request)
        except Exception as error:
            return ev.SendResult(error)
        if answer.ms is not None:
            started_ns = self.now_ns + round(answer.begun_ms * MS)
            done_ns = self.now_ns + round(answer.ms * MS)
            reply = DecisionReply(
                request.tick,
                None if answer.error else answer.decision,
                answer.error,
                done_ns - started_ns,
                received_ns=self.now_ns,
                started_ns=started_ns,
                gaps=answer.gaps,
                **(answer.more or {}),
            )
            self._put(done_ns, lambda: reply)
        return ev.SendResult()

    def _execute(self, command: Command) -> ev.Event:
        replaced, self._waiting = self._waiting, command
        command.demand = self._demand
        if self._acting_until <= self.now_ns:
            self._begin()
        return None if replaced is None else ev.CallPreempted(replaced.tick, "call")

    def _begin(self) -> None:
        command, self._waiting = self._waiting, None
        if command is None:
            return
        began, late = self.now_ns, command.not_after_ns is not None and self.now_ns > command.not_after_ns
        effect: Any = "too_late" if late else "refused" if self.shut else "acted"
        if command.epoch != self.epoch:
            effect = "epoch_over"
        took = self.act_ms(command.call) if effect == "acted" else 0.0
        error = took if isinstance(took, BaseException) else None
        ended = began + (0 if isinstance(took, BaseException) else round(took * MS))
        self._acting_until = ended
        self._put(ended, lambda: self._end(command, "failed" if error else effect, began, error))

    def _end(self, command: Command, effect: Any, began_ns: int, error: BaseException | None) -> ev.Event:
        stands = command.demand == self._demand
        if effect == "acted":
            self.acts.append((self.ms, command.call.text()))
            if command.fresh is not None:
                self.emissions.append(command.fresh)
            if stands and self._wanted:
                self._wanted = False
                self._dispatch(ev.SafeState(False, False))
        self._acting_until = self.now_ns
        self._put(self.now_ns, self._begin)
        return Completion(command.tick, effect, began_ns, self.now_ns, stands, error)

    def _cleared(self, effect: Any) -> None:
        if self._waiting is not None:
            self._dispatch(self.drop(effect))

    def _safe(self, why: str, emission: Emission | None) -> None:
        self._demand += 1
        self._attempt, self._wanted, self._why = 0, True, why
        if emission is not None:
            self.emissions.append(emission)
        self._put(max(self.now_ns, self._acting_until), self._try_safe)

    def _try_safe(self) -> ev.Event:
        if not self._wanted:
            return None
        self._attempt += 1
        failed = self.safe_fails > 0
        self.safe_fails -= failed
        if not failed:
            self._wanted = False
            self.acts.append((self.ms, "SAFE"))
        elif self.core.grid.enforced:
            self._put(self.now_ns + self.core.settings.period_ns, self._try_safe)
        error = OSError("the drive does not answer") if failed else None
        self._dispatch(ev.SafeState(False, self._wanted))
        return SafeAttempt(STOP, self._why, self._attempt, self.now_ns, not failed, True, error)

    def _settle_safe(self) -> None:
        if self._wanted:
            self._dispatch(self._try_safe())  # type: ignore[arg-type]

    # -- what the record says ------------------------------------------------------------------------------------------

    @property
    def ticks(self) -> dict[int, dict[str, Any]]:
        return {line["k"]: line for line in self.lines if "kind" in line}

    @property
    def causes(self) -> dict[int, str]:
        return {
            k: ".".join([t["cause"], *filter(None, [t.get("subcause")])]) for k, t in self.ticks.items() if "cause" in t
        }

    @property
    def kinds(self) -> list[str]:
        return [tick["kind"] for tick in self.ticks.values()]

    def lines_with(self, key: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if key in line]
