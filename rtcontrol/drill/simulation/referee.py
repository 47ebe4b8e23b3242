"""Check a simulated run by a referee, which knows the injected faults and all events. It enforces these rules:

- no call acts after its deadline, after a call of a newer tick, after an operator's pause or stop, or if the loop
  demanded the safe call after it ordered the call;
- the safe call is attempted in time: at the end of the hold, and after an operator's pause or stop;
- each release has one line in the record, in order, or the next line counts it as skipped;
- each miss has a cause that an injected fault explains, or `unknown` if the fault leaves no evidence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from rtcontrol.drill.simulation.faults import LATE, Faults, SimFault
from rtcontrol.drill.simulation.timeline import MS, US, Process, S, SimTimeline, Thread
from rtcontrol.loop.core import LoopSettings

# Tolerance of the checks. A thread needs up to 60 us to wake, and several threads may have to wake in turn.
TOLERANCE_NS = 400 * US
LOCKSTEP_MODES = ("lockstep", "arrivals")  # in these modes, the world waits for decisions, which have no deadlines
TICK_KINDS = frozenset({"call", "null", "held", "overtaken", "repeated", "epoch_over", "miss"})


class Violation(AssertionError):
    """A simulated run has violated a rule of the referee."""


class Referee:
    """A referee of one run. `cause_counts`: how often each cause was reported. `retry_ns`: the maximum time until a
    failed safe call is retried (None: unlimited)."""

    def __init__(self, time: SimTimeline, faults: Faults, settings: LoopSettings, mode: str, process: Process) -> None:
        self.time, self.faults, self.settings, self.mode, self.process = time, faults, settings, mode, process
        self.enforced = mode not in LOCKSTEP_MODES
        self.retry_ns = min(settings.period_ns, S) if self.enforced else None
        self.threads: list[Thread] = []
        self.blocked_spans: Callable[[int], list[tuple[int, int]]] = lambda now: []  # spans of unfinished calls
        self.cause_counts = Counter[str]()
        self.violation: Violation | None = None
        self.origin_ns = 0
        self.next_k = self.ticks = 0
        self.order_count = self.last_demand = 0  # count of calls and demands so far, and this count at the last demand
        self.orders: dict[int, tuple[int, int]] = {}  # by tick: (`order_count`, time) when its call was ordered
        self.missed_ns: deque[int] = deque(maxlen=32)  # times at which the safe call was demanded for a miss
        self.misses_since_renewal = 0
        self.acted_k, self.acted_n = -1, 0  # newest tick whose call acted, and number of its calls that acted
        self.received_ks: set[int] = set()
        self.counted: set[int] = set()  # releases after `next_k` that already have a line
        self.exit_ns: int | None = None
        self.acts: list[int] = []  # times at which fresh calls started to act
        self.safes: list[int] = []  # times at which safe calls were attempted
        self.renewals: list[int] = [time.now_ns]
        self.sampled: dict[int, int] = {}  # by release: when its miss was first sampled
        self.paused_ns: int | None = None
        self.resumed_ns = 0

    def fail(self, text: str) -> None:
        """Raise a Violation. If a rule was violated before, raise the first Violation again."""
        if self.violation is None:
            self.violation = Violation(f"at {(self.time.now_ns - self.origin_ns) / 1e9:.6f} s: {text}")
        raise self.violation

    # -- events of the run --------------------------------------------------------------------------------------------

    def check_order(self, k: int, confirmed: bool) -> None:
        """Check that the loop may order the call of tick `k` now, that is, pass it to the actuator."""
        settings = self.settings
        due_ns = self.origin_ns + k * settings.period_ns + settings.deadline_ns
        if self.enforced and not confirmed and self.time.now_ns > due_ns:
            self.fail(f"the call of tick {k} was ordered after its deadline")
        self.order_count += 1
        self.orders[k] = self.order_count, self.time.now_ns

    def record_demand(self, why: str) -> None:
        """Record that the loop demands the safe calls, for the reason `why`."""
        self.order_count += 1
        self.last_demand = self.order_count
        if why == "miss":
            self.missed_ns.append(self.time.now_ns)

    def check_received(self, k: int) -> None:
        """Check that the client has not received the emission of tick `k` before."""
        if k in self.received_ks:
            self.fail(f"the client receives tick {k} twice")
        self.received_ks.add(k)

    def check_start(self, k: int) -> None:
        """Check that the actuator may start to execute the call of tick `k`."""
        if self.orders[k][0] < self.last_demand:
            self.fail(f"the call of tick {k} starts after the safe call was demanded")

    def check_act(
        self, k: int, requested_ns: int, captured_ns: int, wrong: dict[str, bool], needs_approval: bool = False
    ) -> None:
        """Check that a call of tick `k` may act now.

        `requested_ns`: when the decision was requested. `captured_ns`: when its observation was captured.
        `needs_approval`: whether an operator must approve the call. `wrong`: violations that the caller has checked."""
        now, settings = self.time.now_ns, self.settings
        release_ns = self.origin_ns + k * settings.period_ns
        again = k < self.acted_k or (k == self.acted_k and self.acted_n == settings.calls_per_tick)
        wrong |= {
            "after its deadline": self.enforced and not needs_approval and now > release_ns + settings.deadline_ns,
            "again, or after that of a newer tick": again and not needs_approval,
            "while it is paused": self.paused_ns is not None,
            "though it was requested before the resume": requested_ns < self.resumed_ns,
            "after the end": self.exit_ns is not None,
            "of an observation that was too old": self.enforced
            and captured_ns < release_ns - settings.max_age_ns - settings.period_ns,
        }
        if any(wrong.values()):
            self.fail(f"the call of tick {k} acts {'; '.join(rule for rule, violated in wrong.items() if violated)}")
        self.acted_n = self.acted_n + 1 if k == self.acted_k else 1
        self.acted_k = max(self.acted_k, k)
        self.misses_since_renewal = 0
        self.acts.append(now)

    def record_renewal(self) -> None:
        """Record that the hold starts again, because a fresh call acted or a new epoch started."""
        self.renewals.append(self.time.now_ns)
        self.misses_since_renewal = 0

    def expect_retry(self) -> None:
        """Expect that the safe calls are retried within `retry_ns`, unless a newer call acts."""
        now = self.time.now_ns
        if self.exit_ns is None and self.retry_ns is not None:
            self.expect_safe(now, now + self.retry_ns, len(self.safes))

    def record_command(self, word: str) -> None:
        """Record an operator's command. Unless it is `resume`, expect the safe call at once."""
        now = self.time.now_ns
        if word == "resume":
            self.paused_ns, self.resumed_ns = None, now
        else:
            self.paused_ns = now
            self.expect_safe(now, now)

    def record_sample(self, since_ns: int) -> None:
        """Record when the loop first sampled the evidence for a miss. `since_ns`: the missed release."""
        self.sampled.setdefault(since_ns, self.time.now_ns)

    # -- expected safe calls ------------------------------------------------------------------------------------------

    def expect_safe(self, missed_ns: int, by_ns: int, before: int = 0) -> None:
        """Expect a safe call by `by_ns`, unless a new call has become active since `missed_ns`.

        `before`: the number of earlier safe calls, which do not count."""
        self.time.at(by_ns + TOLERANCE_NS, lambda: self._check_safe_call(missed_ns, by_ns, before))

    def _check_safe_call(self, missed_ns: int, by_ns: int, before: int) -> None:
        last_act = self.acts[-1] if self.acts else 0
        last_safe = self.safes[-1] if self.safes else 0
        safe = last_safe > last_act and len(self.safes) > before
        if safe or self.renewals[-1] > missed_ns or self.exit_ns is not None:
            return
        free_ns = self._blocked_until_ns()
        if free_ns is None:
            self.fail(f"no safe call by {(by_ns - self.origin_ns) / 1e9:.6f} s")
        else:  # check again when the blocked thread continues
            self.time.at(free_ns, lambda: self.expect_safe(missed_ns, max(by_ns, self.time.now_ns), before))

    def _blocked_until_ns(self) -> int | None:
        """Return until when the loop or the actuator is blocked, or None if neither is blocked."""
        now = self.time.now_ns
        spans = [*self.process.frozen_spans[-3:], *self.blocked_spans(now)]
        for thread in self.threads:
            spans += thread.blocked_spans[-3:]
        ends = [end for start, end in spans if start - TOLERANCE_NS <= now < end + TOLERANCE_NS]
        return max(ends) + TOLERANCE_NS if ends else None

    # -- the record ---------------------------------------------------------------------------------------------------

    def check_line(self, line: dict[str, Any]) -> None:
        period_ns = self.settings.period_ns
        if line.get("kind") in TICK_KINDS and "k" in line:
            self._check_tick(line)
        elif "further" in line and line.get("subcause", "slow") != "slow":  # any further call may be slow
            self._check_cause(line, line["further"], self.origin_ns + line["further"] * period_ns)
        elif "origin_ns" in line:
            self.origin_ns = line["origin_ns"]

    def _check_tick(self, line: dict[str, Any]) -> None:
        k, skipped, period_ns = line["k"], line.get("skipped", 0), self.settings.period_ns
        release_ns = self.origin_ns + round(line["t_s"] * 1e9)
        if self.enforced:
            release_ns, shown_ns = self.origin_ns + k * period_ns, release_ns
            if abs(shown_ns - release_ns) > 1000:
                self.fail(f"the line of tick {k} has a wrong release time ({line['t_s']} s)")
        self._count_release(k, skipped)
        if skipped:
            self._check_cause(line, k, release_ns - skipped * period_ns, release_ns, "skip_")
        if "cause" in line:
            self._check_cause(line, k, release_ns)
        elif line["kind"] == "miss":
            self.fail(f"tick {k} missed without a cause")
        if line["kind"] == "miss":
            end_ns = min(self.time.now_ns, release_ns + self.settings.deadline_ns)
            if line["cause"] == "stale_observation":
                end_ns = release_ns + int(line["wake_ms"] * MS)
            self._expect_safe_after_miss(self.sampled.pop(release_ns, end_ns))

    def _count_release(self, k: int, skipped: int) -> None:
        """Check that tick `k` and the skipped releases before it were not counted before, and count them."""
        for release in range(k - skipped, k + 1):
            if release < self.next_k or release in self.counted:
                self.fail(f"release {release} is counted twice")
            self.counted.add(release)
        while self.next_k in self.counted:
            self.counted.remove(self.next_k)
            self.next_k += 1
        if len(self.counted) > 64:
            self.fail(f"release {self.next_k} is not counted")
        self.ticks += 1 + skipped

    def _expect_safe_after_miss(self, missed_ns: int) -> None:
        """Expect a safe call after a miss at `missed_ns`, when the hold of the active call ends. In a world that waits
        for decisions, limit the number of misses instead."""
        if not self.enforced:
            self.misses_since_renewal += 1
            max_misses = 2 + self.settings.hold_ns // self.settings.period_ns if self.settings.on_miss == "hold" else 1
            if self.misses_since_renewal > max_misses + 1 and not (
                self.safes and self.safes[-1] > (self.acts or [0])[-1]
            ):
                self.fail(f"no safe call after {self.misses_since_renewal} misses")
            return
        i = bisect_right(self.renewals, missed_ns) - 1
        limit_ns = self.renewals[max(i, 0)] + self.settings.hold_ns
        by_ns = max(missed_ns, limit_ns) if self.settings.on_miss == "hold" else missed_ns
        self.expect_safe(missed_ns, max(by_ns, self.time.now_ns))

    # -- the cause of a miss ------------------------------------------------------------------------------------------

    def _check_cause(self, line: Any, k: int, start_ns: int, end_ns: int | None = None, prefix: str = "") -> None:
        """Check that a fault since the release before `start_ns` explains the cause of a miss. The cause `unknown`
        needs a fault that leaves no evidence, or several faults, because each may explain less than half of it."""
        cause = ".".join(filter(None, (line[f"{prefix}cause"], line.get(f"{prefix}subcause"))))
        self.cause_counts[cause] += 1
        if cause == "unknown" and self.exit_ns is not None:  # the run ended before evidence was collected
            return
        near = self._faults_between(start_ns - self.settings.period_ns, self.time.now_ns if end_ns is None else end_ns)
        guilty = [fault for fault in near if cause in fault.kind.causes]
        names = {fault.kind.name for fault in near}
        if cause == "unknown":
            several = len(names) > 1 or not self.enforced
            guilty = [fault for fault in near if fault.kind.silent] or (near if several else [])
        if guilty:
            self.faults.count_miss(guilty[-1], cause != "unknown")
        elif not self._follows_from_earlier_fault(line.get("error", ""), k, cause, start_ns):
            self.fail(f"tick {k} missed with cause {cause}, where there was {sorted(names) or 'no fault'}: {line}")

    def _follows_from_earlier_fault(self, error: str, k: int, cause: str, start_ns: int) -> bool:
        """Return whether an earlier fault, or the end of a hold, explains the cause of a miss."""
        settings = self.settings
        preempted = cause == "execute.busy" and error.endswith("preempted by the safe call")
        if preempted and self._hold_ended(k):
            return True
        before_ns = start_ns - settings.period_ns - max(settings.hold_ns, settings.max_age_ns)
        if not self._faults_between(before_ns, self.time.now_ns):
            return False
        old_plan = cause == "decide.error" and error.startswith("the plan was over, or too old")
        waited = cause == "decide.queued" and not self.enforced  # the request waited for the previous tick
        return preempted or old_plan or waited or (self.mode == "plans" and cause in LATE.split())

    def _hold_ended(self, k: int) -> bool:
        """Return whether the hold of the active call ended just when the call of tick `k` was ordered, so that the safe
        call preempted this call. This happens without faults after unsure decisions or a missing approval."""
        ordered_ns = self.orders[k][1]
        ends_ns = self.renewals[bisect_right(self.renewals, ordered_ns) - 1] + self.settings.hold_ns
        demanded_ns = next((t_ns for t_ns in self.missed_ns if t_ns >= max(ordered_ns, ends_ns)), None)
        if self.settings.on_miss != "hold" or demanded_ns is None:
            return False
        return abs(ordered_ns - ends_ns) < TOLERANCE_NS and demanded_ns < ends_ns + TOLERANCE_NS

    def _faults_between(self, start_ns: int, end_ns: int) -> list[SimFault]:
        return [f for f in self.faults.recent if f.start_ns <= end_ns and max(f.end_ns, f.late_ns) >= start_ns]

    # -- the end ------------------------------------------------------------------------------------------------------

    def check_end(self, end_ns: int, open_releases: int) -> None:
        """Check, when the run ends, that every release until `end_ns` has a line, except at most `open_releases`."""
        last = max(self.counted, default=0)
        if self.enforced:
            last = (end_ns - self.origin_ns) // self.settings.period_ns
        missing = [k for k in range(self.next_k, last) if k not in self.counted]
        if len(missing) > open_releases:
            self.fail(f"of {last + 1} releases {missing} are not counted, where {open_releases} are open")
        if not self.safes or (self.acts and self.safes[-1] < self.acts[-1]):
            self.fail("the run ended without the safe call")
