"""The referee of a simulated run: it knows the injected faults and what happens in the world, and checks these laws:

- no call acts after its deadline, after a call of a newer tick, after an operator's pause or stop, or if a safe call
  was demanded after the call was ordered;
- the safe call is attempted in time: at the end of the hold, and after an operator's pause or stop;
- each release has one line in the record, in order, or is counted as skipped in the next line;
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

# Tolerance of checks: a thread takes up to 60 us to wake, and several threads may wake one after the other.
SOON_NS = 400 * US
STEPS = ("lockstep", "arrivals")  # modes in which the world waits for decisions, so that no deadline is enforced
TICK_KINDS = frozenset({"call", "null", "held", "overtaken", "repeated", "epoch_over", "miss"})


class Violation(AssertionError):
    """An error of a simulated run that violated a law."""


class Referee:
    """A referee of one run with the settings `rules`. `cause_counts`: how often each cause was reported. `retry_ns`:
    within which time a failed safe call must be retried."""

    def __init__(self, time: SimTimeline, faults: Faults, rules: LoopSettings, mode: str, process: Process) -> None:
        self.time, self.faults, self.rules, self.mode, self.process = time, faults, rules, mode, process
        self.enforced = mode not in STEPS
        self.retry_ns = min(rules.period_ns, S) if self.enforced else None
        self.threads: list[Thread] = []
        self.blocked_spans: Callable[[int], list[tuple[int, int]]] = (
            lambda now: []
        )  # running calls, whose end is not known
        self.cause_counts = Counter[str]()
        self.violation: Violation | None = None
        self.origin_ns = 0
        self.next_k = self.ticks = 0
        self.order_count = self.last_demand = 0  # number of orders and demands so far, and at the last demand
        self.orders: dict[int, tuple[int, int]] = {}  # by tick: number and time of the order of its call
        self.missed_ns: deque[int] = deque(maxlen=32)  # when the safe call was demanded for a miss
        self.misses_since_renewal = 0
        self.acted_k, self.acted_n = -1, 0  # the newest tick with a call that acted, and how many of its calls acted
        self.received_ks: set[int] = set()
        self.counted: set[int] = set()  # counted releases from `next_k` on
        self.exit_ns: int | None = None
        self.acts: list[int] = []  # when fresh calls started to act
        self.safes: list[int] = []  # when safe calls were attempted
        self.renewals: list[int] = [time.now_ns]
        self.sampled: dict[int, int] = {}  # when the evidence for a miss was first sampled, by release
        self.paused_ns: int | None = None
        self.resumed_ns = 0

    def fail(self, text: str) -> None:
        """Raise a Violation. If this is called again, the first violation is raised again."""
        if self.violation is None:
            self.violation = Violation(f"at {(self.time.now_ns - self.origin_ns) / 1e9:.6f} s: {text}")
        raise self.violation

    # -- at the world -------------------------------------------------------------------------------------------------

    def check_order(self, k: int, confirmed: bool) -> None:
        """Check that the loop may pass the call of tick `k` to the actuator now."""
        rules = self.rules
        due_ns = self.origin_ns + k * rules.period_ns + rules.deadline_ns
        if self.enforced and not confirmed and self.time.now_ns > due_ns:
            self.fail(f"the call of tick {k} is ordered after its deadline")
        self.order_count += 1
        self.orders[k] = self.order_count, self.time.now_ns

    def record_demand(self, why: str) -> None:
        """Record that the safe calls are demanded because of `why`."""
        self.order_count += 1
        self.last_demand = self.order_count
        if why == "miss":
            self.missed_ns.append(self.time.now_ns)

    def check_received(self, k: int) -> None:
        """Check that the client receives the emission of tick `k` only once."""
        if k in self.received_ks:
            self.fail(f"the client receives tick {k} twice")
        self.received_ks.add(k)

    def check_start(self, k: int) -> None:
        """Check that the actuator may start to execute the call of tick `k`."""
        if self.orders[k][0] < self.last_demand:
            self.fail(f"the call of tick {k} starts after the safe call was demanded")

    def check_act(
        self, k: int, requested_ns: int, captured_ns: int, wrong: dict[str, bool], named: bool = False
    ) -> None:
        """Check that a call of tick `k` may act now. `requested_ns`: when the decision was requested; `captured_ns`:
        when its observation was captured. `named`: the call needs approval. `wrong`: other laws, and whether the call
        broke them."""
        now, rules = self.time.now_ns, self.rules
        release_ns = self.origin_ns + k * rules.period_ns
        again = k < self.acted_k or (k == self.acted_k and self.acted_n == rules.calls_per_tick)
        wrong |= {
            "after its deadline": self.enforced and not named and now > release_ns + rules.deadline_ns,
            "again, or after that of a newer tick": again and not named,
            "while it is paused": self.paused_ns is not None,
            "though it was requested before the resume": requested_ns < self.resumed_ns,
            "after the end": self.exit_ns is not None,
            "of an observation that was too old": self.enforced
            and captured_ns < release_ns - rules.max_age_ns - rules.period_ns,
        }
        if any(wrong.values()):
            self.fail(f"the call of tick {k} acts {'; '.join(law for law, broken in wrong.items() if broken)}")
        self.acted_n = self.acted_n + 1 if k == self.acted_k else 1
        self.acted_k = max(self.acted_k, k)
        self.misses_since_renewal = 0
        self.acts.append(now)

    def record_renewal(self) -> None:
        """Record that the hold limit starts again, because a fresh call acted or a new epoch started."""
        self.renewals.append(self.time.now_ns)
        self.misses_since_renewal = 0

    def expect_retry(self) -> None:
        """Expect another attempt of the safe calls within `retry_ns`, unless a newer call acts."""
        now = self.time.now_ns
        if self.exit_ns is None and self.retry_ns is not None:
            self.expect_safe(now, now + self.retry_ns, len(self.safes))

    def record_command(self, word: str) -> None:
        """Record an operator's command. After a pause or stop, expect the safe call at once."""
        now = self.time.now_ns
        if word == "resume":
            self.paused_ns, self.resumed_ns = None, now
        else:
            self.paused_ns = now
            self.expect_safe(now, now)

    def record_sample(self, since_ns: int) -> None:
        """Record when the loop first sampled the evidence since a missed release."""
        self.sampled.setdefault(since_ns, self.time.now_ns)

    # -- when the safe call must act ----------------------------------------------------------------------------------

    def expect_safe(self, missed_ns: int, by_ns: int, before: int = 0) -> None:
        """Schedule a check soon after `by_ns`: since `missed_ns` the active call was renewed, or a safe call was
        attempted. `before`: how many earlier attempts do not count."""
        self.time.at(by_ns + SOON_NS, lambda: self._check_safe_call(missed_ns, by_ns, before))

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
        """Return until when the loop or the actuator is blocked, or None if neither is."""
        now = self.time.now_ns
        spans = [*self.process.frozen_spans[-3:], *self.blocked_spans(now)]
        for thread in self.threads:
            spans += thread.blocked_spans[-3:]
        ends = [end for start, end in spans if start - SOON_NS <= now < end + SOON_NS]
        return max(ends) + SOON_NS if ends else None

    # -- the record ---------------------------------------------------------------------------------------------------

    def check_line(self, line: dict[str, Any]) -> None:
        """Check that a line of the record obeys the laws."""
        period_ns = self.rules.period_ns
        if line.get("kind") in TICK_KINDS and "k" in line:
            self._check_tick(line)
        elif "further" in line and line.get("subcause", "slow") != "slow":  # (a slow further call needs no fault)
            self._check_cause(line, line["further"], self.origin_ns + line["further"] * period_ns)
        elif "origin_ns" in line:
            self.origin_ns = line["origin_ns"]

    def _check_tick(self, line: dict[str, Any]) -> None:
        k, skipped, period_ns = line["k"], line.get("skipped", 0), self.rules.period_ns
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
            end_ns = min(self.time.now_ns, release_ns + self.rules.deadline_ns)
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
        """Expect a safe call after a miss at `missed_ns`: at the end of the hold of the active call. In a world that
        waits for decisions, count the misses instead."""
        if not self.enforced:
            self.misses_since_renewal += 1
            most = 2 + self.rules.hold_ns // self.rules.period_ns if self.rules.on_miss == "hold" else 1
            if self.misses_since_renewal > most + 1 and not (self.safes and self.safes[-1] > (self.acts or [0])[-1]):
                self.fail(f"no safe call after {self.misses_since_renewal} misses")
            return
        i = bisect_right(self.renewals, missed_ns) - 1
        limit_ns = self.renewals[max(i, 0)] + self.rules.hold_ns
        by_ns = max(missed_ns, limit_ns) if self.rules.on_miss == "hold" else missed_ns
        self.expect_safe(missed_ns, max(by_ns, self.time.now_ns))

    # -- the cause of a miss ------------------------------------------------------------------------------------------

    def _check_cause(self, line: Any, k: int, start_ns: int, end_ns: int | None = None, prefix: str = "") -> None:
        """Check that a fault since the release before `start_ns` explains the cause of a miss. The cause `unknown`
        needs a fault that leaves no evidence, or several faults of which none explains half of the lateness."""
        word = ".".join(filter(None, (line[f"{prefix}cause"], line.get(f"{prefix}subcause"))))
        self.cause_counts[word] += 1
        if word == "unknown" and self.exit_ns is not None:  # the run ended before there was evidence
            return
        near = self._faults_between(start_ns - self.rules.period_ns, self.time.now_ns if end_ns is None else end_ns)
        guilty = [fault for fault in near if word in fault.kind.causes]
        names = {fault.kind.name for fault in near}
        if word == "unknown":
            several = len(names) > 1 or not self.enforced
            guilty = [fault for fault in near if fault.kind.silent] or (near if several else [])
        if guilty:
            self.faults.count_miss(guilty[-1], word != "unknown")
        elif not self._follows_from_earlier_fault(line.get("error", ""), k, word, start_ns):
            self.fail(f"tick {k} missed with cause {word}, where there was {sorted(names) or 'no fault'}: {line}")

    def _follows_from_earlier_fault(self, error: str, k: int, word: str, start_ns: int) -> bool:
        """Return whether an earlier fault, or the end of a hold, explains the cause of a miss."""
        rules = self.rules
        preempted = word == "execute.busy" and error.endswith("preempted by the safe call")
        if preempted and self._hold_ended(k):
            return True
        before_ns = start_ns - rules.period_ns - max(rules.hold_ns, rules.max_age_ns)
        if not self._faults_between(before_ns, self.time.now_ns):
            return False
        old_plan = word == "decide.error" and error.startswith("the plan was over, or too old")
        waited = word == "decide.queued" and not self.enforced  # (it waited for the previous tick)
        return preempted or old_plan or waited or (self.mode == "plans" and word in LATE.split())

    def _hold_ended(self, k: int) -> bool:
        """Return whether the hold of the active call ended just when the call of tick `k` was ordered, so that the safe
        call preempted it. Unsure decisions or a missing approval may be the reason, without any fault."""
        ordered_ns = self.orders[k][1]
        ends_ns = self.renewals[bisect_right(self.renewals, ordered_ns) - 1] + self.rules.hold_ns
        demanded_ns = next((t_ns for t_ns in self.missed_ns if t_ns >= max(ordered_ns, ends_ns)), None)
        if self.rules.on_miss != "hold" or demanded_ns is None:
            return False
        return abs(ordered_ns - ends_ns) < SOON_NS and demanded_ns < ends_ns + SOON_NS

    def _faults_between(self, start_ns: int, end_ns: int) -> list[SimFault]:
        return [f for f in self.faults.recent if f.start_ns <= end_ns and max(f.end_ns, f.late_ns) >= start_ns]

    # -- the end ------------------------------------------------------------------------------------------------------

    def check_end(self, end_ns: int, open_releases: int) -> None:
        """Check at the end that every release until `end_ns` has a line, except for the last `open_releases`."""
        last = max(self.counted, default=0)
        if self.enforced:
            last = (end_ns - self.origin_ns) // self.rules.period_ns
        missing = [k for k in range(self.next_k, last) if k not in self.counted]
        if len(missing) > open_releases:
            self.fail(f"of {last + 1} releases {missing} are not counted, where {open_releases} are open")
        if not self.safes or (self.acts and self.safes[-1] < self.acts[-1]):
            self.fail("the run ended without the safe call")
