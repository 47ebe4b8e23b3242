"""Convert runs to a Perfetto trace, with a track for each thread and a slice for each step of a tick.

Open the trace at https://ui.perfetto.dev or with Perfetto's trace processor. Time 0 of the trace is a second before the
first release.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor, TrackEvent

from rtcontrol.telemetry.recorded import RecordedRun
from rtcontrol.telemetry.timeline import Timeline

# Tracks of the trace from top to bottom. On the track `events`, entries have no duration.
TRACKS = ("ticks", "loop", "decoder", "actuator", "world", "events")
# Steps that are shown as slices: (track, name, timestamp at the start, timestamp at the end).
SLICES = (
    ("loop", "observe", "woke", "text"),
    ("loop", "send", "text", "submitted"),
    ("decoder", "decide", "begun", "decided"),
    ("actuator", "execute", "executing", "executed"),
)
LEAD_MS = 1000.0
# (track, name, start in ms from the first release, end in ms or None for an instant, annotations)
TraceEntry = tuple[str, str, float, float | None, Mapping[str, str | int]]


def render_trace(runs: Sequence[RecordedRun]) -> bytes:
    """Return the bytes of a trace file that shows each run as a process."""
    packets = (packet for pid, run in enumerate(runs, 1) for packet in _packets_of_run(pid, run))
    return b"".join(Trace(packet=[packet]).SerializeToString() for packet in packets)


def _packets_of_run(pid: int, run: RecordedRun) -> Iterator[TracePacket]:
    process = TrackDescriptor(uuid=100 * pid)
    process.process.pid, process.process.process_name = pid, run.name
    yield TracePacket(trusted_packet_sequence_id=pid, track_descriptor=process)
    uuids = {track: 100 * pid + number for number, track in enumerate(TRACKS, 1)}
    for track, uuid in uuids.items():
        thread = TrackDescriptor(uuid=uuid, parent_uuid=100 * pid)
        thread.thread.pid, thread.thread.tid, thread.thread.thread_name = pid, uuid, track
        yield TracePacket(trusted_packet_sequence_id=pid, track_descriptor=thread)
    for track, name, start, end, words in sorted(_entries_of_run(run), key=lambda e: (e[2], -(e[3] or e[2]))):
        kind = TrackEvent.TYPE_INSTANT if end is None else TrackEvent.TYPE_SLICE_BEGIN
        event = TrackEvent(track_uuid=uuids[track], type=kind, name=name)
        for word, value in words.items():
            event.debug_annotations.add(
                name=word, **({"string_value": value} if isinstance(value, str) else {"int_value": value})
            )
        yield _track_packet(pid, start, event)
        if end is not None:
            yield _track_packet(pid, end, TrackEvent(track_uuid=uuids[track], type=TrackEvent.TYPE_SLICE_END))


def _track_packet(pid: int, ms: float, event: TrackEvent) -> TracePacket:
    ns = max(0, round(1e6 * (ms + LEAD_MS)))
    return TracePacket(trusted_packet_sequence_id=pid, timestamp=ns, track_event=event)


def _entries_of_run(run: RecordedRun) -> Iterator[TraceEntry]:
    """Yield the trace entries of a run. Shorten or skip slices that would overlap with others of the same track."""
    timeline, free = run.timeline, dict.fromkeys(TRACKS, -math.inf)
    for row in range(len(timeline.k)):
        for track, name, start, end, words in _entries_of_tick(timeline, row):
            if end is not None:
                # Parallel ticks and rounded times may overlap. Start each slice only when the previous slice ends.
                start = max(start, free[track])
                if end < start:
                    continue
                free[track] = end
            yield track, name, start, end, words
    for t_s, mark in timeline.marks:
        yield "events", mark, 1e3 * t_s, None, {}


def _entries_of_tick(timeline: Timeline, row: int) -> Iterator[TraceEntry]:
    numbers, deadline = timeline.numbers, timeline.header.get("deadline_ms", 0.0)
    k, t_ms, latency = {"k": timeline.k[row]}, 1e3 * numbers["t_s"][row], numbers["latency_ms"][row]
    words = {name: column[row] for name, column in timeline.words.items() if column[row]}
    cause = ".".join(filter(None, (words.get("cause"), words.get("subcause"))))
    ended = deadline if math.isnan(latency) else min(latency, deadline)
    yield "ticks", cause or f"on time: {words['kind']}", t_ms, t_ms + ended, {**k, **words}
    if not math.isnan(captured := numbers["captured"][row]):
        yield "world", "observation", t_ms + captured, None, k
    for track, name, start, end in SLICES:
        if not math.isnan(numbers[start][row] + numbers[end][row]):
            yield track, name, t_ms + numbers[start][row], t_ms + numbers[end][row], k
