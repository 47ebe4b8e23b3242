"""The report as a Perfetto trace (TrackEvent): one track a thread, a slice for each thing that it did.

To be opened at https://ui.perfetto.dev or with Perfetto's trace processor. Time 0 of the trace is a second before the
first release.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor, TrackEvent

from rtcontrol.record.reading import read_stamped
from rtcontrol.report.gates import Gate
from rtcontrol.report.recorded import Recorded, begun
from rtcontrol.report.timeline import Timeline

TRACKS = ("ticks", "loop", "decoder", "actuator", "world", "recorder")
# What each thread does: track, name, and the stamps that it lies between (None: the release).
SLICES = (
    ("loop", "observe", "woke", "text"),
    ("loop", "submit", "text", "submitted"),
    ("decoder", "decide", "begun", "decided"),
    ("actuator", "execute", "executing", "executed"),
)
LEAD_MS = 1000.0
# (track, name, begin in ms from the first release, end in ms or None for an instant, words beside it)
Entry = tuple[str, str, float, float | None, dict[str, str | float]]


def render(runs: Sequence[Recorded], gates: Sequence[Gate]) -> bytes:
    """The bytes of a trace file; each run is a process."""
    begun(runs, "a trace")
    trace = Trace()
    for pid, run in enumerate(runs, 1):
        _describe(trace, pid, run.name)
        for track, name, begin, end, words in sorted(entries(run), key=lambda e: (e[2], -(e[3] or e[2]))):
            where = _packet(trace, pid, begin)
            event = where.track_event
            event.track_uuid, event.name = _uuid(pid, track), name
            event.type = TrackEvent.TYPE_INSTANT if end is None else TrackEvent.TYPE_SLICE_BEGIN
            for word, value in words.items():
                note = event.debug_annotations.add(name=word)
                if isinstance(value, str):
                    note.string_value = value
                else:
                    note.double_value = value
            if end is not None:
                over = _packet(trace, pid, end).track_event
                over.track_uuid, over.type = _uuid(pid, track), TrackEvent.TYPE_SLICE_END
    packed: bytes = trace.SerializeToString()
    return packed


def entries(run: Recorded) -> Iterator[Entry]:
    """What the trace shows of a run; slices of one track never overlap, but one may hold another."""
    timeline, free = run.timeline, dict.fromkeys(TRACKS, -math.inf)
    for row in range(len(timeline.k)):
        for track, name, begin, end, words in _tick(timeline, row):
            # Two ticks in flight, and rounded stamps: what began before the last one ended is shown from there.
            begin = max(begin, free[track])
            if end is None or end >= begin:
                free[track] = begin if end is None else end
                yield track, name, begin, end, words
    for t_s, call, why in timeline.acts:
        if why == "safe":
            yield "actuator", f"safe: {call}", 1e3 * t_s, None, {}
    for t_s, what in timeline.marks:
        yield "world", what, 1e3 * t_s, None, {}
    yield from _recorded(run)


def _tick(timeline: Timeline, row: int) -> Iterator[Entry]:
    at = {name: column[row] for name, column in timeline.numbers.items()}
    told = {name: word for name in timeline.words if (word := timeline.words[name][row])}
    k, t_ms, deadline = timeline.k[row], 1e3 * at["t_s"], timeline.header.get("deadline_ms", 0.0)
    latency = deadline if math.isnan(at["latency_ms"]) else min(at["latency_ms"], deadline)
    yield "ticks", f"tick {k}: {told.get('cause', 'on time')}", t_ms, t_ms + latency, {"k": float(k), **told}
    if not math.isnan(at["captured"]):
        yield "world", "observation", t_ms + at["captured"], None, {"k": float(k)}
    if math.isnan(at["woke"]):  # a record without spans: what its times say
        at["begun"], at["decided"] = at["wake_ms"], at["wake_ms"] + at["decide_ms"]
        at["executing"], at["executed"] = at["latency_ms"] - at["execute_ms"], at["latency_ms"]
    for track, name, begin, end in SLICES:
        if not math.isnan(at[begin] + at[end]):
            yield track, name, t_ms + at[begin], t_ms + at[end], {"k": float(k)}


def _recorded(run: Recorded) -> Iterator[Entry]:
    """When each tick was written down, against the one that was written soonest."""
    written = [(ns / 1e6, e) for ns, e in read_stamped(run.record) if ns is not None and "kind" in e]
    over = [ms - 1e3 * e["t_s"] - (e.get("latency_ms") or run.report["deadline_ms"]) for ms, e in written]
    for ms, event in written:
        yield "recorder", f"tick {event['k']}", ms - min(over), None, {"k": float(event["k"])}


def _packet(trace: Trace, pid: int, ms: float) -> TracePacket:
    packet = trace.packet.add()
    packet.timestamp, packet.trusted_packet_sequence_id = max(0, round(1e6 * (ms + LEAD_MS))), pid
    return packet


def _uuid(pid: int, track: str) -> int:
    return 100 * pid + 1 + TRACKS.index(track)


def _describe(trace: Trace, pid: int, name: str) -> None:
    process = TrackDescriptor(uuid=100 * pid)
    process.process.pid, process.process.process_name = pid, name
    trace.packet.add(track_descriptor=process, trusted_packet_sequence_id=pid)
    for number, track in enumerate(TRACKS, 1):
        thread = TrackDescriptor(uuid=_uuid(pid, track), parent_uuid=100 * pid)
        thread.thread.pid, thread.thread.tid, thread.thread.thread_name = pid, 100 * pid + number, track
        trace.packet.add(track_descriptor=thread, trusted_packet_sequence_id=pid)
