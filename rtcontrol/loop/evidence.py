"""Gathers the evidence of ticks that missed, the kernel's word on threads (Linux) with it, and looks at it again when
more becomes known."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Self

from rtcontrol.hosts.heartbeat import Heartbeat
from rtcontrol.hosts.protocol import DecisionReply, Host
from rtcontrol.loop.actuator import Actuator
from rtcontrol.loop.attribution import Evidence, ThreadUsage, Verdict, attribute, usual
from rtcontrol.records import KnownCause, Tick
from rtcontrol.telemetry.causes import Cause

PROC = Path("/proc")
# Of a schedstat file: all of it, from its start.
SIZE = 96
CONTROLLERS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a thread: its state (a letter; X: it is gone), and since its start its major faults, and for how long
    its group was throttled. None where the kernel does not tell."""

    state: str | None = None
    major_faults: int | None = None
    throttled_ns: int | None = None


class Threads:
    """The loop's own thread first, then the deciding ones. `fds` are their schedstat files, open for `os.pread`: what
    it gives is read by `ran_and_delayed`. Nothing here raises: what the kernel does not tell is not known."""

    def __init__(self) -> None:
        self.fds: tuple[int, ...] = ()
        self._files: list[tuple[int, int | None]] = []  # of each thread: stat, its group's cpu.stat
        self._opened: list[int] = []

    def follow(self, threads: Sequence[tuple[int, int]]) -> None:
        """These: process and thread numbers."""
        self.close()
        fds: list[int] = []
        groups: dict[int, int | None] = {}
        with contextlib.suppress(OSError):
            for pid, tid in threads:
                folder = f"{PROC}/{pid}/task/{tid}"
                fds.append(self._open(f"{folder}/schedstat"))
                if pid not in groups:
                    group = _group(pid)
                    groups[pid] = None if group is None else self._open(group)
                self._files.append((self._open(f"{folder}/stat"), groups[pid]))
        self.fds = tuple(fds)

    def look(self) -> list[Look]:
        """One at each."""
        return [_look(*files) for files in self._files]

    def close(self) -> None:
        opened, self._opened, self._files, self.fds = self._opened, [], [], ()
        for fd in opened:
            os.close(fd)

    def _open(self, path: str) -> int:
        self._opened.append(fd := os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        return fd


def socket_threads(pid: int) -> list[int]:
    """The threads of a process that carry what goes through its ZeroMQ sockets."""
    with contextlib.suppress(OSError):
        tasks = [task for task in (PROC / f"{pid}/task").iterdir() if _text(task / "comm").startswith("ZMQbg/IO")]
        return [int(task.name) for task in tasks]
    return []


def ran_and_delayed(raw: bytes) -> tuple[int, int]:
    """Of a schedstat file: nanoseconds on a processor, and of waiting for one."""
    ran, delayed = raw.split()[:2]
    return int(ran), int(delayed)


def _look(stat: int, group: int | None) -> Look:
    try:
        # The name, in parentheses, may hold anything.
        fields = os.pread(stat, 4096, 0).rpartition(b")")[2].split()
        throttled = None
        if group is not None:
            told = os.pread(group, 4096, 0)
            us = _number(told, b"throttled_usec ")
            throttled = _number(told, b"throttled_time ") if us is None else 1000 * us
        return Look(fields[0].decode(), int(fields[9]), throttled)
    except ProcessLookupError:
        return Look("X")
    except (OSError, ValueError, IndexError):
        return Look()


def _number(text: bytes, name: bytes) -> int | None:
    _, found, rest = text.partition(name)
    return int(rest.split(None, 1)[0]) if found else None


def _group(pid: int) -> str | None:
    """The cpu.stat of the process's control group, of either version."""
    with contextlib.suppress(OSError, ValueError):
        for line in (PROC / f"{pid}/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            if not names or "cpu" in names.split(","):
                for base in (CONTROLLERS / names, CONTROLLERS / "unified", CONTROLLERS):
                    if "throttled" in _text(file := base / path.lstrip("/") / "cpu.stat"):
                        return str(file)
    return None


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


# Begin, end and kind (gc, stall) of a pause; CLOCK_MONOTONIC nanoseconds.
Pause = tuple[int, int, str]


class PauseWatch(Heartbeat):
    """The heartbeat of the loop's process, and the collector's own callbacks.

    A heartbeat that comes late by more than `threshold_ns` is a pause; so is every collection longer than 1 ms. The
    scale follows the period: a stall that a 16 Hz loop never feels matters at 100 Hz.
    """

    GC_MIN_NS = 1_000_000

    def __init__(self, period_ns: int) -> None:
        super().__init__(
            min(max(period_ns // 10, 1_000_000), 5_000_000), min(max(period_ns // 5, 2_000_000), 10_000_000)
        )
        self._collections: deque[tuple[int, int]] = deque(maxlen=64)
        self._gc_began_ns = 0

    def __enter__(self) -> Self:
        gc.callbacks.append(self._on_gc)
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        gc.callbacks.remove(self._on_gc)

    def pauses(self, begin_ns: int, end_ns: int) -> list[Pause]:
        """Those between two instants, clipped to them, one that is just ending included, in order."""
        collections = list(self._collections)
        now = time.monotonic_ns()
        if (began := self._gc_began_ns) and now - began > self.GC_MIN_NS:
            collections.append((began, now))
        found = [(b, e, "gc") for b, e in collections] + [(b, e, "stall") for b, e in self.gaps(begin_ns)]
        return sorted((max(b, begin_ns), min(e, end_ns), k) for b, e, k in found if e > begin_ns and b < end_ns)

    def _on_gc(self, phase: str, info: dict[str, Any]) -> None:
        now = time.monotonic_ns()
        if phase == "start":
            self._gc_began_ns = now
            return
        if now - self._gc_began_ns > self.GC_MIN_NS:
            self._collections.append((self._gc_began_ns, now))
        self._gc_began_ns = 0


# Ticks on time whose steps tell what is usual; misses that a later word may be about.
USUAL, REMEMBERED = 15, 64
# Of the threads that are looked at: the loop's and the actuator's, which stay the same.
OWN = 2


class EvidenceCollector:
    """Says why a tick missed. On the loop's thread, and but for `usual` and `threads` off the steady way: the loop puts
    the spans of ticks on time into `usual`, and reads the files of `threads` at each release.
    """

    def __init__(self, watch: PauseWatch, host: Host, actuator: Actuator, periodic: bool = True) -> None:
        self._watch, self._host, self._actuator, self._periodic = watch, host, actuator, periodic
        self.usual: deque[Mapping[str, float]] = deque(maxlen=USUAL)
        self.texts: deque[tuple[int, int]] = deque(maxlen=8)  # when the loop's thread was long at work on one
        self.threads = Threads()
        self._looked: list[Look] = []
        self._looked_ns = 0
        self._roles: list[str] = []  # of these
        self._followed = 0  # the host's incarnation then
        self._heard: Sequence[tuple[int, int]] = ()  # the decoder's gaps, as its newest reply tells them
        self._missed: dict[int, tuple[Tick, Evidence, Verdict]] = {}

    def follow(self) -> None:
        """The threads that count: this one, the actuator's, the host's, which are others after a restart, and those
        that carry what goes between them."""
        pid, own, actuator = os.getpid(), threading.get_native_id(), self._actuator.thread
        acts = own if actuator is None else actuator.native_id or own
        decides = list(self._host.threads)
        carries = [(p, tid) for p in {pid, *(p for p, _ in decides)} for tid in socket_threads(p)]
        self._roles = ["loop", "actuator", *["decoder" for _ in decides], *["sockets" for _ in carries]]
        self.threads.follow([(pid, own), (pid, acts), *decides, *carries])
        self._looked, self._followed = self.threads.look(), self._host.incarnation
        self._looked_ns = time.monotonic_ns()

    def attribute(
        self,
        tick: Tick,
        spans: Mapping[str, float],
        now_ns: int,
        fault: KnownCause | None = None,
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

    def reattribute(
        self, tick: Tick, spans: Mapping[str, float], now_ns: int, reply: DecisionReply | None = None
    ) -> dict[str, Any]:
        """The same of one that was blamed before, now that its steps are known to the end; empty where it was not, or
        what was said of it was no matter of time."""
        missed = self._missed.get(tick.k)
        if missed is None or (missed[2].explained_ms is None and missed[2].cause is not Cause.UNKNOWN):
            return {}
        before, until = missed[1], _ms(now_ns - tick.release_ns)
        gaps = list(dict.fromkeys([*before.gaps, *_clip(tick, self._heard, 0.0, until)]))
        pauses, acting = self._pauses(tick, before.since_ms, until), self._acting(tick, until)
        known = replace(before, end_ms=until, spans=_filled(tick, spans, reply), over=True, host=None)
        known = replace(known, gaps=gaps, pauses=pauses, acting=acting, texts=_clip(tick, self.texts, 0.0, until))
        for name, now in self._worst([ThreadUsage(**times) for times in self._times(tick)]).items():
            if now.ran_ms is not None:
                thread = replace(getattr(before, name), ran_ms=now.ran_ms, delayed_ms=now.delayed_ms)
                known = replace(known, **{name: thread})
        return self._revised(tick, known)

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

    def why_skipped(self, tick: Tick, first_ns: int) -> dict[str, Any]:
        """Why the releases from `first_ns` until the tick's were not begun: the loop's thread was away from there."""
        woke, looked = _ms(tick.woke_ns - first_ns), (self._looked, self._looked_ns)
        evidence = self._evidence(replace(tick, release_ns=first_ns), {"woke": woke}, tick.woke_ns, None, None, True)
        self._looked, self._looked_ns = looked  # what the tick itself is told by begins there, too
        evidence = replace(evidence, late_ms=woke, host=None, decoder=ThreadUsage())
        return _fields(evidence, attribute(evidence))

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
        fault: KnownCause | None,
        reply: DecisionReply | None,
        over: bool,
    ) -> Evidence:
        end, since, late = _ms(now_ns - tick.release_ns), 0.0, None
        if fault is not None and fault[0] is Cause.STALE_OBSERVATION:
            # What kept the loop from looking kept the world's own thread, too.
            since = _ms(tick.capture_ns - tick.release_ns)
            ages = [spans["woke"] - spans["captured"] for spans in self.usual if "captured" in spans]
            late = _ms(tick.woke_ns - tick.capture_ns) - (median(ages) if ages else 0.0)
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
            apart=not threads or threads[0][0] != os.getpid(),
            gaps=_clip(tick, self._heard, 0.0, end),
            behind=tick.behind,
            arrival=not self._periodic,
            host=self._host_trouble(tick) if reply is None else None,
            texts=_clip(tick, self.texts, 0.0, end),
            acting=self._acting(tick, end),
            **self._kernels(tick),
        )

    def _host_trouble(self, tick: Tick) -> str | None:
        host = self._host
        alive = host.alive()  # asked first: a standby takes over just then
        if host.gave_up is not None:
            return "gave_up"
        if host.incarnation != tick.incarnation:
            return "lost"
        if alive:
            return None
        lost = [event.t_ns for event in host.events if event.event == "lost"]
        return "restarting" if lost and lost[-1] < tick.release_ns else "lost"

    def _pauses(self, tick: Tick, since: float, until: float) -> list[tuple[float, float, str]]:
        begin, end = (tick.release_ns + round(t * 1e6) for t in (since, until))
        return [(*_from(tick, (b, e)), kind) for b, e, kind in self._watch.pauses(begin, end)]

    def _acting(self, tick: Tick, until: float) -> list[tuple[float, float]]:
        doings, now = [(begin, end) for begin, end in tuple(self._actuator.doings)], time.monotonic_ns()
        # One that has not ended is under way, or went on beside the next.
        begins = [*(begin for begin, _ in doings[1:]), now]
        return _clip(
            tick, [(begin, end or next_) for (begin, end), next_ in zip(doings, begins, strict=False)], 0.0, until
        )

    def _kernels(self, tick: Tick) -> dict[str, ThreadUsage]:
        # What was counted long before the release is none of this tick's.
        recent = self._looked_ns >= 2 * tick.release_ns - tick.deadline_ns
        looked, before = self.threads.look(), self._looked if recent else []
        self._looked, self._looked_ns = looked, time.monotonic_ns()
        kernels = []
        for i, (look, times) in enumerate(zip(looked, self._times(tick), strict=False)):
            past = before[i] if len(before) == len(looked) else Look()
            throttled = _since(look.throttled_ns, past.throttled_ns)
            kernels.append(
                ThreadUsage(
                    look.state,
                    major_faults=_since(look.major_faults, past.major_faults),
                    throttled_ms=None if throttled is None else _ms(throttled),
                    **times,
                )
            )
        return self._worst(kernels)

    def _times(self, tick: Tick) -> list[dict[str, Any]]:
        """Of each thread: for how long it ran and had no processor since the release, as far as that is known."""
        times: list[dict[str, Any]] = [{} for _ in self.threads.fds]
        # After a restart other threads decide.
        runs = tick.runs if tick.incarnation == self._followed else tick.runs[:OWN]
        for i, (fd, raw) in enumerate(zip(self.threads.fds, runs, strict=False)):
            with suppress(OSError, ValueError):
                ran, delayed = ran_and_delayed(raw)
                now = ran_and_delayed(os.pread(fd, SIZE, 0))
                times[i] = {"ran_ms": _ms(now[0] - ran), "delayed_ms": _ms(now[1] - delayed)}
                if i < min(OWN, len(tick.runs_before)):
                    times[i]["waking_ms"] = _ms(delayed - ran_and_delayed(tick.runs_before[i])[1])
        return times

    def _worst(self, kernels: Sequence[ThreadUsage]) -> dict[str, ThreadUsage]:
        """By their roles: of several the one that was worst off."""
        worst: dict[str, ThreadUsage] = {}
        for role, kernel in zip(self._roles, kernels, strict=False):
            if role not in worst or (kernel.delayed_ms or 0.0) > (worst[role].delayed_ms or 0.0):
                worst[role] = kernel
        return worst


def _fields(evidence: Evidence, verdict: Verdict) -> dict[str, Any]:
    line: dict[str, Any] = {"cause": verdict.cause.value}
    if verdict.subcause is not None:
        line["subcause"] = verdict.subcause
    return line | {"evidence": evidence.to_dict(verdict)}


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
