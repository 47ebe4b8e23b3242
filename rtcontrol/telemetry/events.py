"""Define the events of a record: their topics, the JSON Schema of each topic, and their encoding as JSON.

An event is a JSON object. Each kind of event has an identifying key, such as `ack`, which determines its topic.
`t_s` is the time in seconds since the first release. Names that end in `_ms` are durations in milliseconds. The log
time of an MCAP message is UTC: the monotonic time plus the header's `clock_anchor`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

SCHEMA_VERSION = 3  # version of the record format; readers reject higher versions
MAX_NUMBERS = 4096  # larger arrays (such as camera pictures) are recorded only as type and shape
MAX_BYTES = 1 << 23  # maximum bytes of an event; readers reject messages of more than twice this size

# By JSON type: the fields with this type. All other fields are strings.
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
    **{name: {"type": "array", "items": {"type": "string"}} for name in ("history", "unfamiliar")},
    "data": {},
    "result": {},
}
_DECIDED = "cause subcause spans_ms latency_ms decide_ms execute_ms error where"
_SCORED = "passes tokens reused confidence unfamiliar kept decided_by"
# By topic: (keys that identify its events, further fields). docs/record.md explains the fields.
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
# The order matters, because an observation event also has the key `instruction` of the next topic.
_TOPICS = {key: topic for topic, (keys, _) in CHANNELS.items() for key in keys.split()}


def topic_of(event: Mapping[str, Any]) -> str:
    """Return the topic of an event. Raises KeyError if the kind of event is unknown."""
    for key, topic in _TOPICS.items():
        if key in event:
            return topic
    raise KeyError(f"unknown kind of event with the fields {', '.join(event)}")


def schema_name(topic: str) -> str:
    """Return the name of a topic's schema."""
    if topic == "/picture":
        return "foxglove.CompressedImage"  # viewers show messages of this schema as pictures
    return f"rtcontrol{topic.replace('/', '.')}"


def topic_schema(topic: str) -> dict[str, Any]:
    """Return the JSON Schema of a topic's messages."""
    names = " ".join(CHANNELS[topic]).split()
    properties = {name: _TYPES.get(name, {"type": "string"}) for name in names}
    if topic == "/picture":
        stamp = {"sec": {"type": "integer"}, "nsec": {"type": "integer"}}
        properties["timestamp"] = {"type": "object", "title": "time", "properties": stamp}
        properties["data"] = {"type": "string", "contentEncoding": "base64"}
    return {"title": schema_name(topic), "type": "object", "properties": properties}


# -- JSON -------------------------------------------------------------------------------------------------------------


def encode_event(event: Mapping[str, Any]) -> bytes:
    """Encode an event as JSON in at most MAX_BYTES bytes, also if its data (of a world or client) is not JSON.

    A value that JSON cannot express becomes a string. If the event is too large, its large fields are shortened.
    """
    try:
        text = _to_bytes(event)
    except Exception:
        event = {name: to_jsonable(value) for name, value in event.items()}
        text = _to_bytes(event)
    if len(text) > MAX_BYTES:
        text = _to_bytes({name: _shorten_field(value) for name, value in event.items()})
    return text


def to_jsonable(value: Any) -> Any:
    """Convert a value to JSON-compatible data, or to a dict with the error if this fails."""
    try:
        return _convert(value)
    except Exception as error:
        return {"unreadable": f"{type(error).__name__}: {error}"}


def _convert(value: Any) -> Any:
    """Convert a value to JSON-compatible data. Raises RecursionError, and any exception of the value's methods."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _convert(inner) for name, inner in value.items()}
    if isinstance(value, bytes | bytearray) and len(value) > MAX_NUMBERS:
        return {"dtype": "bytes", "shape": [len(value)]}
    if (shape := getattr(value, "shape", None)) is not None and hasattr(value, "tolist"):
        if math.prod(shape) > MAX_NUMBERS:
            return {"dtype": str(value.dtype), "shape": [*shape]}
        return _convert(value.tolist())
    if isinstance(value, list | tuple | set | frozenset | bytes | bytearray):
        return [_convert(inner) for inner in value]
    return str(value)


def _to_bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=_convert, allow_nan=False).encode()


def _shorten_field(value: Any) -> Any:
    size, max_size = len(_to_bytes(value)), MAX_BYTES // 16
    if size <= max_size:
        return value
    return value[: max_size // 8] if isinstance(value, str) else {"unreadable": f"{size} bytes"}
