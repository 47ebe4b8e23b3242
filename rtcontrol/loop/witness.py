"""Gathers the evidence of ticks that missed, and looks at it again when more becomes known."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rtcontrol.hosts.base import DecisionReply, Host
from rtcontrol.loop.causes import Evidence, Kernel, Verdict, attribute, usual
from rtcontrol.loop.deadline import Cause, Tick
from rtcontrol.loop.kernel import SIZE, Look, Threads, ran_and_delayed
from rtcontrol.loop.pause import PauseWatch

# Ticks on time whose steps tell what is usual; misses that a later word may be about.
USUAL, REMEMBERED = 15, 64

Fault = tuple[Cause, str | None]


class Witness:
    """Says why a tick missed. On the loop's thread, and but for `usual` and `threads` off the steady way: the loop puts
    the spans of ticks on time into `usual`, and reads the files of `threads` at each release.

    `acting` is when the actuator was last at work on a call.
    """

    def __init__(self, watch: PauseWatch, host: Host, max_age_ns: int, enforced: bool = True) -> None:
        self._watch, self._host, self._max_age_ns, self._enforced = watch, host, max_age_ns, enforced
        self.usual: deque[Mapping[str, float]] = deque(maxlen=USUAL)
        self.threads = Threads()
        self.acting = (0, 0)
        self._looked: list[Look] = []
        self._heard: Sequence[tuple[int, int]] = ()  # the decoder's gaps, as its newest reply tells them
        self._missed: dict[int, tuple[Tick, Evidence, Verdict]] = {}

    def follow(self) -> None:
        """The threads whose doings count: this one, and the host's, which are others after a restart."""
        self.threads.follow([(os.getpid(), threading.get_native_id()), *self._host.threads])
        self._looked = self.threads.look()

    def blame(
        self,
        tick: Tick,
        spans: Mapping[str, float],
        now_ns: int,
        fault: Fault | None = None,
        reply: DecisionReply | None = None,
        over: bool = False,
    ) -> dict[str, Any]:
        """The event's cause, sub-cause and evidence of a tick that missed, and was over (or named) at `now_ns`."""
        evidence = self._evidence(tick, spans, now_ns, fault, reply, over)
        verdict = attribute(evidence)
        self._missed[tick.k] = tick, evidence, verdict
        if len(self._missed) > REMEMBERED:
            del self._missed[next(iter(self._missed))]
        return _fields(evidence, verdict)

    def again(
        self, tick: Tick, spans: Mapping[str, float], now_ns: int, reply: DecisionReply | None = None
    ) -> dict[str, Any]:
        """The same of one that was blamed before, now that its steps are known to the end; empty where it was not, or
        what was said of it was no matter of time."""
        known = self._missed.get(tick.k)
        if known is None or (known[2].explained_ms is None and known[2].cause is not Cause.UNKNOWN):
            return {}
        before, until = known[1], _ms(now_ns - tick.release_ns)
        gaps = [*before.gaps, *_clip(tick, self._heard, 0.0, until)]
        pauses = self._pauses(tick, before.since_ms, until)
        filled = _filled(tick, spans, reply)
        evidence = replace(before, end_ms=until, spans=filled, over=True, gaps=gaps, pauses=pauses, host=None)
        return self._revised(tick, evidence)

    def hear(self, reply: DecisionReply) -> Iterator[tuple[int, dict[str, Any]]]:
        """Misses of which the decoder's heartbeat tells more than was known: the tick, and what changes."""
        self._heard = reply.gaps
        for k, (tick, before, verdict) in tuple(self._missed.items()):
            if verdict.explained_ms is None and verdict.cause is not Cause.UNKNOWN:
                continue
            if gaps := [gap for gap in _clip(tick, self._heard, 0.0, before.end_ms) if gap not in before.gaps]:
                evidence = replace(before, gaps=[*before.gaps, *gaps])
                if attribute(evidence)[:2] != verdict[:2]:
                    yield k, self._revised(tick, evidence)

    def why_skipped(self, tick: Tick, first_ns: int) -> tuple[Cause, str | None]:
        """Why the releases from `first_ns` until the tick's were not begun: the loop's thread was away from there."""
        woke = _ms(tick.woke_ns - first_ns)
        late = replace(tick, release_ns=first_ns, skipped=0)
        evidence = self._evidence(late, {"woke": woke}, tick.woke_ns, None, None, True)
        return attribute(replace(evidence, late_ms=woke, host=None))[:2]

    def close(self) -> None:
        self.threads.close()

    def _revised(self, tick: Tick, evidence: Evidence) -> dict[str, Any]:
        verdict = attribute(evidence)
        self._missed[tick.k] = tick, evidence, verdict
        return _fields(evidence, verdict)

    def _evidence(
        self,
        tick: Tick,
        spans: Mapping[str, float],
        now_ns: int,
        fault: Fault | None,
        reply: DecisionReply | None,
        over: bool,
    ) -> Evidence:
        end, since, late = _ms(now_ns - tick.release_ns), 0.0, None
        if fault is not None and fault[0] is Cause.STALE_OBSERVATION:
            # What kept the loop from looking kept the world's own thread, too.
            since = _ms(tick.capture_ns - tick.release_ns)
            late = _ms(tick.woke_ns - tick.capture_ns - self._max_age_ns)
        loop, decoder = self._kernel(tick)
        threads = self._host.threads
        return Evidence(
            deadline_ms=_ms(tick.deadline_ns - tick.release_ns),
            end_ms=end,
            spans=_filled(tick, spans, reply),
            over=over,
            fault=fault,
            late_ms=late,
            since_ms=since,
            usual=usual(self.usual),
            pauses=self._pauses(tick, since, end),
            writes=_clip(tick, self._watch.writes(tick.release_ns, now_ns), since, end),
            apart=not threads or threads[0][0] != os.getpid(),
            gaps=_clip(tick, self._heard, 0.0, end),
            behind=tick.behind,
            arrival=not self._enforced,
            host=self._host_trouble(tick) if reply is None else None,
            busy=_from(tick, tick.busy),
            acting=_from(tick, self.acting),
            loop=loop,
            decoder=decoder,
        )

    def _host_trouble(self, tick: Tick) -> str | None:
        host = self._host
        if host.gave_up is not None:
            return "gave_up"
        if host.incarnation != tick.incarnation:
            return "lost"
        if host.alive():
            return None
        lost = [event.t_ns for event in host.events if event.event == "lost"]
        return "restarting" if lost and lost[-1] < tick.release_ns else "lost"

    def _pauses(self, tick: Tick, since: float, until: float) -> list[tuple[float, float, str]]:
        begin, end = (tick.release_ns + round(t * 1e6) for t in (since, until))
        return [(*_from(tick, (b, e)), kind) for b, e, kind in self._watch.pauses(begin, end)]

    def _kernel(self, tick: Tick) -> tuple[Kernel, Kernel]:
        """Of the loop's thread, and of the deciding one: of several the one that was worst off."""
        looked, before = self.threads.look(), self._looked
        self._looked = looked
        try:
            now = [ran_and_delayed(os.pread(fd, SIZE, 0)) for fd in self.threads.fds]
            then = [ran_and_delayed(raw) for raw in tick.runs]
            earlier = [ran_and_delayed(raw) for raw in tick.runs_before]
        except (OSError, ValueError):
            now = then = earlier = []
        kernels = []
        for i, look in enumerate(looked):
            ran = delayed = waking = None
            if i < len(then) and i < len(now):
                ran, delayed = _ms(now[i][0] - then[i][0]), _ms(now[i][1] - then[i][1])
                if i < len(earlier):
                    waking = _ms(then[i][1] - earlier[i][1])
            past = before[i] if len(before) == len(looked) else Look()
            throttled = _since(look.throttled_ns, past.throttled_ns)
            faults, switches = (
                _since(getattr(look, key), getattr(past, key)) for key in ("major_faults", "involuntary")
            )
            throttled_ms = None if throttled is None else _ms(throttled)
            kernels.append(Kernel(look.state, ran, delayed, waking, faults, switches, throttled_ms))
        deciding = sorted(kernels[1:], key=lambda kernel: kernel.delayed_ms or 0.0)
        return kernels[0] if kernels else Kernel(), deciding[-1] if deciding else Kernel()


def _fields(evidence: Evidence, verdict: Verdict) -> dict[str, Any]:
    line: dict[str, Any] = {"cause": verdict.cause.value}
    if verdict.subcause is not None:
        line["subcause"] = verdict.subcause
    return line | {"evidence": evidence.told(verdict)}


def _filled(tick: Tick, spans: Mapping[str, float], reply: DecisionReply | None) -> dict[str, float]:
    """The spans, with the decoder's own where its clock is another: it began so long before its reply was there."""
    filled = {name: t for name, t in spans.items() if name not in ("captured", "received")}
    if reply is not None and "begun" not in filled and "submitted" in filled and "replied" in filled:
        filled["decided"] = filled["replied"]
        filled["begun"] = max(filled["submitted"], filled["replied"] - _ms(reply.decide_ns))
    return filled


def _clip(tick: Tick, spans: Sequence[tuple[int, int]], since: float, until: float) -> list[tuple[float, float]]:
    found = [_from(tick, span) for span in spans]
    return [(max(b, since), min(e, until)) for b, e in found if e > since and b < until]


def _from(tick: Tick, span: tuple[int, int]) -> tuple[float, float]:
    return _ms(span[0] - tick.release_ns), _ms(span[1] - tick.release_ns)


def _since(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


def _ms(ns: int) -> float:
    return round(ns / 1e6, 4)
