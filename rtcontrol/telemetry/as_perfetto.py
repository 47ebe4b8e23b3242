"""The report as a Perfetto trace (TrackEvent): one track a thread, a slice for each thing that it did.

To be opened at https://ui.perfetto.dev or with Perfetto's trace processor. Time 0 of the trace is a second before the
first release.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    DebugAnnotation,
    Trace,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)

from rtcontrol.telemetry.gates import Gate
from rtcontrol.telemetry.recorded import Recorded, begun
from rtcontrol.telemetry.timeline import Timeline

# The last one's instants are what befell the run.
TRACKS = ("ticks", "loop", "decoder", "actuator", "world", "recorder", "events")
# What each thread does: track, name, and the stamps that it lies between.
SLICES = (
    ("loop", "observe", "woke", "text"),
    ("loop", "send", "text", "submitted"),
    ("decoder", "decide", "begun", "decided"),
    ("actuator", "execute", "executing", "executed"),
)
LEAD_MS = 1000.0
VARINT, LENGTH = 0, 2  # protobuf's wire types
Words = Mapping[str, str | int]
# (track, name, begin in ms from the first release, end in ms or None for an instant, words beside it)
Entry = tuple[str, str, float, float | None, Words]


def render(runs: Sequence[Recorded], gates: Sequence[Gate]) -> bytes:
    """The bytes of a trace file; each run is a process."""
    begun(runs, ticks=True)
    return b"".join(part for pid, run in enumerate(runs, 1) for part in _process(pid, run))


def entries(run: Recorded) -> Iterator[Entry]:
    """What the trace shows of a run; slices of one track never overlap."""
    timeline, free = run.timeline, dict.fromkeys(TRACKS, -math.inf)
    for row in range(len(timeline.k)):
        for track, name, begin, end, words in _tick(timeline, row):
            if end is not None:
                # Two ticks in flight, and rounded stamps: what began before the last one ended is shown from there.
                begin = max(begin, free[track])
                if end < begin:
                    continue
                free[track] = end
            yield track, name, begin, end, words
    for t_s, call, why, k in timeline.acts:
        if why in ("safe", "further"):
            yield "actuator", f"{why}: {call}", 1e3 * t_s, None, {"k": k}
    for t_s, what in timeline.marks:
        yield "events", what, 1e3 * t_s, None, {}


def _tick(timeline: Timeline, row: int) -> Iterator[Entry]:
    numbers, deadline = timeline.numbers, timeline.header.get("deadline_ms", 0.0)
    k, t_ms, latency = timeline.k[row], 1e3 * numbers["t_s"][row], numbers["latency_ms"][row]
    told = {name: word for name, column in timeline.words.items() if (word := column[row])}
    words: Words = {"k": k}
    cause = ".".join(filter(None, (told.get("cause"), told.get("subcause"))))
    ended = deadline if math.isnan(latency) else min(latency, deadline)
    yield "ticks", cause or f"on time: {told['kind']}", t_ms, t_ms + ended, {**words, **told}
    if not math.isnan(captured := numbers["captured"][row]):
        yield "world", "observation", t_ms + captured, None, words
    spans = {stamp: numbers[stamp][row] for _, _, begin, end in SLICES for stamp in (begin, end)}
    if math.isnan(spans["woke"]):  # a record without spans: what its times say
        spans["begun"] = numbers["wake_ms"][row]
        spans["decided"] = spans["begun"] + numbers["decide_ms"][row]
        spans["executing"], spans["executed"] = latency - numbers["execute_ms"][row], latency
    for track, name, begin, end in SLICES:
        if not math.isnan(spans[begin] + spans[end]):
            yield track, name, t_ms + spans[begin], t_ms + spans[end], words
    if not math.isnan(recorded := numbers["recorded"][row]):
        yield "recorder", "tick", t_ms + recorded, None, words


def _process(pid: int, run: Recorded) -> Iterator[bytes]:
    """A run's packets. What is the same in many is encoded once: a long run has a million of them."""
    process = TrackDescriptor(uuid=100 * pid)
    process.process.pid, process.process.process_name = pid, run.name
    tracks = [process]
    for number, track in enumerate(TRACKS, 1):
        tracks.append(TrackDescriptor(uuid=100 * pid + number, parent_uuid=100 * pid))
        thread = tracks[-1].thread
        thread.pid, thread.tid, thread.thread_name = pid, 100 * pid + number, track
    sequence = TracePacket(trusted_packet_sequence_id=pid)
    for described in tracks:
        packet = TracePacket(track_descriptor=described)
        packet.MergeFrom(sequence)
        yield Trace(packet=[packet]).SerializeToString()

    head = sequence.SerializeToString() + _tag(TracePacket, "timestamp", VARINT)
    whole, inner = _tag(Trace, "packet", LENGTH), _tag(TracePacket, "track_event", LENGTH)

    def packed(ms: float, event: bytes) -> bytes:
        body = head + _varint(max(0, round(1e6 * (ms + LEAD_MS)))) + inner + _varint(len(event)) + event
        return whole + _varint(len(body)) + body

    @cache
    def kind(track: str, name: str, type: int) -> bytes:
        event = TrackEvent(track_uuid=100 * pid + 1 + TRACKS.index(track), type=type, name=name or None)
        made: bytes = event.SerializeToString()
        return made

    for track, name, begin, end, words in sorted(entries(run), key=lambda e: (e[2], -(e[3] or e[2]))):
        beside = b"".join(_annotation(word, value) for word, value in words.items())
        type = TrackEvent.TYPE_INSTANT if end is None else TrackEvent.TYPE_SLICE_BEGIN
        yield packed(begin, kind(track, name, type) + beside)
        if end is not None:
            yield packed(end, kind(track, "", TrackEvent.TYPE_SLICE_END))


@lru_cache(maxsize=1 << 14)
def _annotation(word: str, value: str | int) -> bytes:
    """A repeated field of an event: encoded alone, it may stand behind the others."""
    made = DebugAnnotation(name=word)
    if isinstance(value, str):
        made.string_value = value
    else:
        made.int_value = value
    packed: bytes = TrackEvent(debug_annotations=[made]).SerializeToString()
    return packed


def _tag(message: Any, field: str, wire_type: int) -> bytes:
    return _varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | wire_type)


def _varint(value: int) -> bytes:
    """Protobuf's: seven bits a byte, the lowest first, the highest bit set in all but the last."""
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
