"""The referee of a simulated run, which knows the injected faults and the events at the world, but not the cores.

The referee checks these laws after each event that concerns them:

- no call acts after its deadline, after a call of a newer tick, after an operator's command, or if it was ordered
  before the safe call was demanded;
- the safe call is attempted in time: at the end of the hold, and after an operator's command;
- each release has one line, in order, or was counted as skipped before the next one;
- each miss has a cause that an injected fault explains, or `unknown` where the fault leaves no evidence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from rtcontrol.drill.simulation.faults import LATE, Faults, SimFault
from rtcontrol.drill.simulation.timeline import MS, US, Process, S, SimTimeline, Thread
from rtcontrol.loop.core import LoopSettings

# A free thread takes up to 60 us to wake, and the threads of the loop and the actuator wake in sequence.
SOON_NS = 400 * US
STEPS = ("lockstep", "arrivals")  # in these modes the world waits: no deadline is enforced
TICK_KINDS = frozenset({"call", "null", "held", "overtaken", "repeated", "epoch_over", "miss"})


class Violation(AssertionError):
    """The simulated run broke a law."""


class Referee:
    """A referee of one run with the given settings and mode. `words` counts the reported causes. `retry_ns`: by when a
    failed safe call must be tried again."""

    def __init__(self, time: SimTimeline, faults: Faults, rules: LoopSettings, mode: str, process: Process) -> None:
        self.time, self.faults, self.rules, self.mode, self.process = time, faults, rules, mode, process
        self.enforced = mode not in STEPS
        self.retry_ns = min(rules.period_ns, S) if self.enforced else None
        self.threads: list[Thread] = []
        self.absent: Callable[[int], list[tuple[int, int]]] = lambda now: []  # running calls, whose end is not known
        self.words = Counter[str]()
        self.violation: Violation | None = None
        self.origin_ns = 0
        self.next_k = self.ticks = 0
        self.order = self.demand = 0  # number of orders and demands, and of the last demand
        self.orders: dict[int, tuple[int, int]] = {}  # number and time of each tick's order
        self.missed_ns: deque[int] = deque(maxlen=32)  # when the safe call was demanded for a miss
        self.bare = 0  # misses since the active call was renewed
        self.acted_k, self.acted_n = -1, 0  # the newest tick that acted, and the number of its calls
        self.received_ks: set[int] = set()
        self.counted: set[int] = set()  # skipped releases from `next_k` on
        self.left_ns: int | None = None
        self.acts: list[int] = []  # when fresh calls started to act
        self.safes: list[int] = []  # when safe calls were attempted
        self.renewals: list[int] = [time.now_ns]
        self.sampled: dict[int, int] = {}  # when the evidence for a miss was first sampled, by release
        self.paused_ns: int | None = None
        self.opened_ns = 0

    def fail(self, text: str) -> None:
        """Raise a Violation. The first violation stays."""
        if self.violation is None:
            self.violation = Violation(f"at {(self.time.now_ns - self.origin_ns) / 1e9:.6f} s: {text}")
        raise self.violation

    # -- at the world -------------------------------------------------------------------------------------------------

    def ordered(self, k: int, confirmed: bool) -> None:
        """Check that the loop may pass the call of tick `k` to the actuator."""
        rules = self.rules
        due_ns = self.origin_ns + k * rules.period_ns + rules.deadline_ns
        if self.enforced and not confirmed and self.time.now_ns > due_ns:
            self.fail(f"the call of tick {k} is ordered after its deadline")
        self.order += 1
        self.orders[k] = self.order, self.time.now_ns

    def demanded(self, why: str) -> None:
        """Record that the safe call is demanded."""
        self.order += 1
        self.demand = self.order
        if why == "miss":
            self.missed_ns.append(self.time.now_ns)

    def received(self, k: int) -> None:
        """Check that a client may receive the call of tick `k`, or that the previous call continues."""
        if k in self.received_ks:
            self.fail(f"the client receives tick {k} twice")
        self.received_ks.add(k)

    def performs(self, k: int) -> None:
        """Check that the actuator may start the call of tick `k`, which may have to wait for the world."""
        if self.orders[k][0] < self.demand:
            self.fail(f"the call of tick {k} starts after the safe call was demanded")

    def acts_now(
        self, k: int, requested_ns: int, captured_ns: int, wrong: dict[str, bool], named: bool = False
    ) -> None:
        """Check that a call of tick `k` may start to act, which was requested at `requested_ns` for an observation of
        `captured_ns`. `named`: the tool needs a yes; `wrong`: whether the call breaks other laws, by the text of the
        law."""
        now, rules = self.time.now_ns, self.rules
        release_ns = self.origin_ns + k * rules.period_ns
        again = k < self.acted_k or (k == self.acted_k and self.acted_n == rules.calls_per_tick)
        wrong |= {
            "after its deadline": self.enforced and not named and now > release_ns + rules.deadline_ns,
            "again, or after that of a newer tick": again and not named,
            "while it is paused": self.paused_ns is not None,
            "though it was requested before the resume": requested_ns < self.opened_ns,
            "after the end": self.left_ns is not None,
            "of an observation that was too old": self.enforced
            and captured_ns < release_ns - rules.max_age_ns - rules.period_ns,
        }
        if any(wrong.values()):
            self.fail(f"the call of tick {k} acts {'; '.join(law for law, broken in wrong.items() if broken)}")
        self.acted_n = self.acted_n + 1 if k == self.acted_k else 1
        self.acted_k = max(self.acted_k, k)
        self.bare = 0
        self.acts.append(now)

    def renewed(self) -> None:
        """Restart the hold limit, because a fresh call acted or an epoch started."""
        self.renewals.append(self.time.now_ns)
        self.bare = 0

    def failed(self) -> None:
        """Expect another attempt after a failed one within the retry period, unless a newer call acts."""
        now = self.time.now_ns
        if self.left_ns is None and self.retry_ns is not None:
            self.expect_safe(now, now + self.retry_ns, len(self.safes))

    def commanded(self, word: str) -> None:
        """Record that an operator's command was taken."""
        now = self.time.now_ns
        if word == "resume":
            self.paused_ns, self.opened_ns = None, now
        else:
            self.paused_ns = now
            self.expect_safe(now, now)

    def samples(self, since_ns: int) -> None:
        """Record that the evidence since a missed release is sampled."""
        self.sampled.setdefault(since_ns, self.time.now_ns)

    # -- the safe call by its instant ---------------------------------------------------------------------------------

    def expect_safe(self, missed_ns: int, by_ns: int, before: int = 0) -> None:
        """Check soon after `by_ns` that the safe call was attempted (except for the attempts `before`), or that the
        active call was renewed."""
        self.time.at(by_ns + SOON_NS, lambda: self._look(missed_ns, by_ns, before))

    def _look(self, missed_ns: int, by_ns: int, before: int) -> None:
        last_act = self.acts[-1] if self.acts else 0
        last_safe = self.safes[-1] if self.safes else 0
        safe = last_safe > last_act and len(self.safes) > before
        if safe or self.renewals[-1] > missed_ns or self.left_ns is not None:
            return
        free_ns = self._free_ns()
        if free_ns is None:
            self.fail(f"no safe call by {(by_ns - self.origin_ns) / 1e9:.6f} s")
        else:  # the thread cannot act now, so check again when it can
            self.time.at(free_ns, lambda: self.expect_safe(missed_ns, max(by_ns, self.time.now_ns), before))

    def _free_ns(self) -> int | None:
        """Return until when the loop or the actuator cannot act, or None if both can."""
        now = self.time.now_ns
        spans = [*self.process.stood[-3:], *self.absent(now)]
        for thread in self.threads:
            spans += thread.away[-3:]
        ends = [end for start, end in spans if start - SOON_NS <= now < end + SOON_NS]
        return max(ends) + SOON_NS if ends else None

    # -- the record ---------------------------------------------------------------------------------------------------

    def write(self, line: dict[str, Any]) -> None:
        """Check a line of the record."""
        period_ns = self.rules.period_ns
        if line.get("kind") in TICK_KINDS and "k" in line:
            self._tick(line)
        elif "further" in line and line.get("subcause", "slow") != "slow":  # that it began just before its deadline
            self._judge(line, line["further"], self.origin_ns + line["further"] * period_ns)
        elif "origin_ns" in line:
            self.origin_ns = line["origin_ns"]

    def _tick(self, line: dict[str, Any]) -> None:
        k, skipped, period_ns = line["k"], line.get("skipped", 0), self.rules.period_ns
        release_ns = self.origin_ns + round(line["t_s"] * 1e9)
        if self.enforced:
            release_ns, shown_ns = self.origin_ns + k * period_ns, release_ns
            if abs(shown_ns - release_ns) > 1000:
                self.fail(f"tick {k} is of {line['t_s']} s")
        self._count(k, skipped)
        if skipped:
            self._judge(line, k, release_ns - skipped * period_ns, release_ns, "skip_")
        if "cause" in line:
            self._judge(line, k, release_ns)
        elif line["kind"] == "miss":
            self.fail(f"tick {k} missed without a cause")
        if line["kind"] == "miss":
            end_ns = min(self.time.now_ns, release_ns + self.rules.deadline_ns)
            if line["cause"] == "stale_observation":
                end_ns = release_ns + int(line["wake_ms"] * MS)
            self._missed(self.sampled.pop(release_ns, end_ns))

    def _count(self, k: int, skipped: int) -> None:
        """Check that a finished tick, and the skipped releases before it, are counted once."""
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

    def _missed(self, missed_ns: int) -> None:
        """Handle a miss at `missed_ns`: the active call may be held until the end of its hold. In a world that waits,
        the hold is a number of periods, and no tick starts before the safe call was tried."""
        if not self.enforced:
            self.bare += 1
            most = 2 + self.rules.hold_ns // self.rules.period_ns if self.rules.on_miss == "hold" else 1
            if self.bare > most + 1 and not (self.safes and self.safes[-1] > (self.acts or [0])[-1]):
                self.fail(f"no safe call after {self.bare} misses")
            return
        i = bisect_right(self.renewals, missed_ns) - 1
        limit_ns = self.renewals[max(i, 0)] + self.rules.hold_ns
        by_ns = max(missed_ns, limit_ns) if self.rules.on_miss == "hold" else missed_ns
        self.expect_safe(missed_ns, max(by_ns, self.time.now_ns))

    # -- the cause of a miss ------------------------------------------------------------------------------------------

    def _judge(self, line: dict[str, Any], k: int, start_ns: int, end_ns: int | None = None, prefix: str = "") -> None:
        """Check that a fault since the release before `start_ns` explains the cause. For `unknown`, check that a fault
        leaves no evidence, or that none of several faults explains half."""
        word = ".".join(filter(None, (line[f"{prefix}cause"], line.get(f"{prefix}subcause"))))
        self.words[word] += 1
        if word == "unknown" and self.left_ns is not None:  # the run ended before there was evidence
            return
        near = self._faults_of(start_ns - self.rules.period_ns, self.time.now_ns if end_ns is None else end_ns)
        guilty = [fault for fault in near if word in fault.kind.causes]
        names = {fault.kind.name for fault in near}
        if word == "unknown":
            several = len(names) > 1 or not self.enforced  # none explains half; also faults of the previous tick
            guilty = [fault for fault in near if fault.kind.silent] or (near if several else [])
        if guilty:
            self.faults.costs(guilty[-1], word != "unknown")
        elif not self._follows(line.get("error", ""), k, word, start_ns):
            self.fail(f"tick {k} missed with cause {word}, where there was {sorted(names) or 'no fault'}: {line}")

    def _follows(self, error: str, k: int, word: str, start_ns: int) -> bool:
        """Return whether the miss follows from an earlier fault, or from the end of a hold."""
        rules = self.rules
        gave_way = word == "execute.busy" and error.endswith("preempted by the safe call")
        if gave_way and self._hold_ended(k):
            return True
        before_ns = start_ns - rules.period_ns - max(rules.hold_ns, rules.max_age_ns)
        if not self._faults_of(before_ns, self.time.now_ns):
            return False
        old_plan = word == "decide.error" and error.startswith("the plan was over, or too old")
        waited = word == "decide.queued" and not self.enforced  # for the tick before
        return gave_way or old_plan or waited or (self.mode == "plans" and word in LATE.split())

    def _hold_ended(self, k: int) -> bool:
        """Return whether a hold ended just when the call of tick `k` was ordered, because the active call had not been
        renewed for so long. The reason may be other than a fault, such as unsure decisions or a missing yes."""
        ordered_ns = self.orders[k][1]
        ends_ns = self.renewals[bisect_right(self.renewals, ordered_ns) - 1] + self.rules.hold_ns
        demanded_ns = next((t_ns for t_ns in self.missed_ns if t_ns >= max(ordered_ns, ends_ns)), None)
        if self.rules.on_miss != "hold" or demanded_ns is None:
            return False
        return abs(ordered_ns - ends_ns) < SOON_NS and demanded_ns < ends_ns + SOON_NS

    def _faults_of(self, start_ns: int, end_ns: int) -> list[SimFault]:
        return [f for f in self.faults.recent if f.start_ns <= end_ns and max(f.end_ns, f.late_ns) >= start_ns]

    # -- the end ------------------------------------------------------------------------------------------------------

    def ended(self, end_ns: int, open_releases: int) -> None:
        """Check at the end of the run that every release until `end_ns` has a line, except for open ones."""
        last = max(self.counted, default=0)
        if self.enforced:
            last = (end_ns - self.origin_ns) // self.rules.period_ns
        missing = [k for k in range(self.next_k, last) if k not in self.counted]
        if len(missing) > open_releases:
            self.fail(f"of {last + 1} releases {missing} are not counted, where {open_releases} are open")
        if not self.safes or (self.acts and self.safes[-1] < self.acts[-1]):
            self.fail("the run ended without the safe call")
