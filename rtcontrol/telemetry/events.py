"""The event model: the topics of a record, the JSON Schema of each topic, and the JSON of an event.

An event is a JSON object. A key that only one kind of event has determines the kind and the topic. Stamps: `t_s` is
seconds since the first release, `*_ms` milliseconds. A message's log time is UTC, by the header's anchor of the two
clocks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

SCHEMA_VERSION = 3  # version of the whole format: a reader refuses a later version
MOST_NUMBERS = 4096  # for a larger array only type and shape are written, since camera pictures would fill the disk
MOST_BYTES = 1 << 23  # bytes of one event: a reader refuses a message of twice that size

# Fields by JSON type; all others are text.
_TYPED = {
    "integer": "k n epoch seq rested answers step steps superseded skipped passes tokens reused further first plan ack "
    "late overran attempt schema_version origin_ns open",
    "number": "t_s wake_ms latency_ms decide_ms age_ms execute_ms jitter_ms answer_ms plan_ms waited_ms took_ms "
    "seconds confidence sure",
    "boolean": "over used void",
    "object": "evidence kept spans_ms skip_evidence arguments episode host_event header start timestamp",
}
_TYPES: dict[str, dict[str, Any]] = {
    **{name: {"type": kind} for kind, names in _TYPED.items() for name in names.split()},
    **{name: {"type": ["string", "null"]} for name in ("safe", "understood", "end")},
    "safe_in_force": {"type": ["boolean", "null"]},
    "answer": {"type": ["object", "null"]},
    "in_force": {"type": ["object", "boolean"]},
    "history": {"type": "array", "items": {"type": "string"}},
    "data": {},
    "result": {},
}
_DECIDED = "cause subcause spans_ms latency_ms decide_ms execute_ms error where"
_SCORED = "passes tokens reused confidence kept decided_by"
# By topic (docs/record.md explains the messages): the keys that identify its events, and other fields.
CHANNELS: dict[str, tuple[str, str]] = {
    "/tick": (
        "kind",
        f"k t_s member rested evidence why action call answers step steps wake_ms age_ms jitter_ms epoch seq "
        f"superseded skipped skip_cause skip_subcause skip_evidence {_DECIDED} {_SCORED}",
    ),
    "/observation": ("observation", "k seq epoch t_s instruction history in_force data member"),
    "/picture": ("frame_id", "timestamp data format"),
    "/further": ("further", f"n t_s outcome over age_ms call why action {_DECIDED} {_SCORED}"),
    "/first": ("first", "n outcome answer loss answer_ms t_s confidence error"),
    "/plan": ("plan", "outcome steps loss plan_ms t_s error"),
    "/call": ("called", "arguments k epoch why t_s member"),
    "/result": ("ack", "status why n result t_s error"),
    "/late": ("late overran", f"used waited_ms effect call t_s evidence {_DECIDED}"),
    "/safe": ("safe", "why t_s attempt in_force member world error where"),
    "/instruction": ("instruction", "refused t_s"),
    "/understood": ("understood", "said not_understood detail by sure took_ms t_s"),
    "/people": ("people", "by k call seconds void t_s"),
    "/episode": ("episode", ""),
    "/host": ("host_event", ""),
    "/fault": ("fault", "t_s error where"),
    "/log": ("log", "t_s"),
    "/run": (
        "header start origin_ns end",
        "schema_version t_s open safe_in_force skipped skip_cause skip_subcause skip_evidence",
    ),
}
# `observation` before `instruction`: an observation has both.
_TOPICS = {key: topic for topic, (keys, _) in CHANNELS.items() for key in keys.split()}


def topic_of(event: Mapping[str, Any]) -> str:
    """Return the topic of an event. Raises KeyError if the kind of event is unknown."""
    for key, topic in _TOPICS.items():
        if key in event:
            return topic
    raise KeyError(f"an event of no known kind: {', '.join(event)}")


def schema_name(topic: str) -> str:
    """Return the name of a topic's schema."""
    if topic == "/picture":
        return "foxglove.CompressedImage"  # a name that viewers show
    return f"rtcontrol{topic.replace('/', '.')}"


def schema(topic: str) -> dict[str, Any]:
    """Return the JSON Schema of a topic's messages."""
    names = " ".join(CHANNELS[topic]).split()
    properties = {name: _TYPES.get(name, {"type": "string"}) for name in names}
    if topic == "/picture":
        stamp = {"sec": {"type": "integer"}, "nsec": {"type": "integer"}}
        properties["timestamp"] = {"type": "object", "title": "time", "properties": stamp}
        properties["data"] = {"type": "string", "contentEncoding": "base64"}
    return {"title": schema_name(topic), "type": "object", "properties": properties}


# -- JSON -------------------------------------------------------------------------------------------------------------


def encoded(event: Mapping[str, Any]) -> bytes:
    """Return an event as JSON of at most `MOST_BYTES`, for any data from a world or a client.

    A value that JSON lacks becomes text, and a field that is too large is replaced by its size.
    """
    try:
        text = _json(event)
    except Exception:
        event = {name: plain(value) for name, value in event.items()}
        text = _json(event)
    if len(text) > MOST_BYTES:
        text = _json({name: _outline(value) for name, value in event.items()})
    return text


def plain(value: Any) -> Any:
    """Return a JSON form of a value in new containers, or the reason why the value cannot be written."""
    try:
        return _plain(value)
    except Exception as error:
        return {"unreadable": f"{type(error).__name__}: {error}"}


def _plain(value: Any) -> Any:
    """Return the JSON form of a value. Raises RecursionError, and any error that converting a value to text raises."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, bytes | bytearray) and len(value) > MOST_NUMBERS:
        return {"dtype": "bytes", "shape": [len(value)]}
    if (shape := getattr(value, "shape", None)) is not None and hasattr(value, "tolist"):
        if math.prod(shape) > MOST_NUMBERS:
            return {"dtype": str(value.dtype), "shape": [*shape]}
        return _plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset | bytes | bytearray):
        return [_plain(inner) for inner in value]
    return str(value)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=_plain, allow_nan=False).encode()


def _outline(value: Any) -> Any:
    size, most = len(_json(value)), MOST_BYTES // 16
    if size <= most:
        return value
    return value[: most // 8] if isinstance(value, str) else {"unreadable": f"{size} bytes"}
