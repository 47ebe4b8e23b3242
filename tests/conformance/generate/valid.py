"""Valid messages in both encodings."""

from __future__ import annotations

import base64
import copy
import struct
from typing import Any

import msgpack

TOKEN = "q7Jr0c2yT5mX9vKd_f3A"
UNICODE = '左に寄せて 🚀 é e\u0301 \u202e <|im_end|> \u0000 \\ "'
CALL = {"name": "steer", "arguments": {"angle": -10, "gain": 0.1, "mode": "左", "flags": [True, None, {"a": []}]}}
TOOL = {
    "type": "function",
    "function": {
        "name": "steer",
        "description": "Turn the wheel.",
        "parameters": {
            "type": "object",
            "properties": {
                "angle": {"type": "integer", "minimum": -30, "maximum": 30, "multipleOf": 10},
                "mode": {"enum": ["soft", "hard", None, 1, True]},
            },
            "required": ["angle"],
        },
    },
}
BIG = (1 << 53) - 1
LIMITS = {
    "max_parts": 8,
    "max_message_bytes": 1 << 20,
    "max_depth": 16,
    "max_string_bytes": 1 << 16,
    "max_items": 4096,
    "max_total_items": 16_384,
}

HELLO = {"type": "hello", "protocol": [1, 0], "client": {"name": "rover"}, "t_client_ns": 5_000_000_000}
HELLO_FULL = {
    **HELLO,
    "client": {"name": "rover", "version": "2.1", "language": "javascript"},
    "capabilities": ["executed"],
    "tools": [TOOL],
    "instruction": "Follow the road.",
    "model": "lander",
    "safe_call": {"name": "steer", "arguments": {"angle": 0}},
    "pacing": "client",
    "hz": 12.5,
    "deadline_ms": 60.0,
    "ttl_ms": 0.0,
    "max_age_ms": 250.0,
    "on_miss": "safe",
    "hold_ms": 125.5,
    "robot": "rover-1",
    "resume": TOKEN,
}
WELCOME = {
    "type": "welcome",
    "protocol": [1, 0],
    "server": {"name": "rtcontrol", "version": "0.1.0", "language": "python"},
    "session": TOKEN,
    "resumed": False,
    "epoch": 0,
    "t_client_ns": 5_000_000_000,
    "t_server_ns": 812_000_000_000,
    "capabilities": ["executed"],
    "agent": "lander",
    "tools": [TOOL],
    "instruction": "Follow the road.",
    "model": "lander",
    "model_trained_on_tools": False,
    "safe_call": {"name": "steer", "arguments": {}},
    "pacing": "server",
    "hz": 10.0,
    "period_ms": 100.0,
    "deadline_ms": 100.0,
    "ttl_ms": 500.0,
    "max_age_ms": 300.0,
    "on_miss": "hold",
    "hold_ms": 250.0,
    "heartbeat_ms": 1000.0,
    "session_grace_s": 30.0,
    "limits": LIMITS,
    "warnings": ["The model was not trained on these tools.", UNICODE],
}
OBSERVE = {"type": "observe", "session": TOKEN, "seq": 1, "epoch": 0, "t_ns": 5_040_000_000}
CALL_FULL = {
    "type": "call",
    "session": TOKEN,
    "tick": 7,
    "epoch": 2,
    "seq_obs": 1,
    "t_obs_ns": 5_040_000_000,
    "status": "fresh",
    "call": CALL,
    "ttl_ms": 500.0,
    "deadline_ns": 812_090_000_000,
    "t_server_ns": 812_031_000_000,
    "confidence": 0.75,
    "timing": {"age_ms": 31.0, "decide_ms": 24.5, "late_ms": 0.0},
}
CALL_BARE = {k: CALL_FULL[k] for k in ("type", "session", "tick", "epoch", "status", "ttl_ms", "deadline_ns")} | {
    "t_server_ns": 1,
    "timing": {},
}
EXECUTED = {"type": "executed", "session": TOKEN, "tick": 7, "epoch": 2, "outcome": "executed", "t_ns": 5_072_000_000}
RESET = {"type": "reset", "session": TOKEN, "epoch": 3}
PONG = {"type": "pong", "id": 7, "t_ping_ns": 6, "t_received_ns": 812_990_400_000, "t_sent_ns": 812_990_500_000}
ERROR = {"type": "error", "code": "invalid", "message": "observe.seq: Input should be a valid integer."}
ERROR_FULL = {
    **ERROR,
    "remedy": "See `observe`.",
    "field": "seq",
    "seq": BIG,
    "retryable": True,
    "fatal": True,
    "dropped": 12,
}
NUMBERS = {
    "zero": 0,
    "minus": -1,
    "small": -(1 << 31),
    "fixint": 127,
    "u8": 255,
    "u16": 65_535,
    "u32": (1 << 32) - 1,
    "half": 0.5,
    "tenth": 0.1,
    "tiny": 5e-324,
    "huge": 1.7976931348623157e308,
    "minus_tenth": -0.1,
    "third": 1 / 3,
}

Vector = dict[str, Any]


def vector(
    name: str, side: str, message: dict[str, Any], *buffers: bytes, canonical: bool = True, minor: int = 0
) -> Vector:
    """One vector; `buffers` belong to the message's arrays in order; `minor` is the version that has all its fields."""
    text, header = copy.deepcopy(message), copy.deepcopy(message)
    for i, buffer in enumerate(buffers):
        text["arrays"][i]["base64"] = base64.b64encode(buffer).decode()
        header["arrays"][i]["part"] = i + 1
    parts = [msgpack.packb(header).hex(), *(b.hex() for b in buffers)]
    found = {"name": name, "from": side, "json": text, "msgpack": parts, "canonical": canonical}
    return found | ({"minor": minor} if minor else {})


def valid() -> list[Vector]:
    return [*_hellos(), *_observations(), *_calls(), *_rest(), *_of_1_1()]


def _of_1_1() -> list[Vector]:
    stop, dim = {"name": "stop", "arguments": {}}, {"name": "lamp", "arguments": {"level": 0}}
    hello = {**HELLO_FULL, "protocol": [1, 1], "safe_calls": [stop, dim]}
    welcome = {**WELCOME, "protocol": [1, 1], "safe_call": stop, "safe_calls": [stop, dim]}
    safe = {**CALL_BARE, "status": "safe", "call": stop, "cause": "stale_observation"}
    told = [
        ("hello, several safe calls", "client", hello),
        ("welcome, every field of 1.1", "server", {**welcome, "trained": True, "release_ns": 812_000_000_000}),
        ("welcome, before the first tick, nothing known of training", "server", welcome),
        ("welcome, not trained on these tools", "server", {**welcome, "trained": False}),
        ("call, fresh, with its release", "server", {**CALL_FULL, "release_ns": 812_000_000_000}),
        ("call, safe, several", "server", {**safe, "calls": [stop, dim], "release_ns": 812_000_000_000}),
        ("call, safe, one", "server", {**safe, "calls": [stop]}),
        ("error, refusal of a hello", "server", {**ERROR_FULL, "t_client_ns": 5_000_000_000}),
    ]
    found = [vector(f"1.1: {name}", side, message, minor=1) for name, side, message in told]
    bare = {**HELLO, "protocol": [1, 1], "safe_calls": [{"name": "stop"}]}
    return [*found, vector("1.1: hello, safe calls without arguments", "client", bare, canonical=False, minor=1)]


def _hellos() -> list[Vector]:
    hello_defaults = {**HELLO, "capabilities": [], "pacing": "server", "agent": "lander"}
    hello_defaults["client"] = {"name": "r", "version": "", "language": ""}
    optional = ("capabilities", "agent", "safe_call", "warnings")
    bare = {k: v for k, v in WELCOME.items() if k not in optional}
    return [
        vector("hello, every field", "client", HELLO_FULL),
        vector("hello with an agent", "client", hello_defaults),
        vector("hello, required fields only", "client", HELLO, canonical=False),
        vector("hello, null is absent", "client", {**HELLO, "agent": None, "hz": None, "tools": None}, canonical=False),
        vector(
            "hello, null in a nested map",
            "client",
            {**HELLO, "client": {"name": "r", "version": None}},
            canonical=False,
        ),
        vector(
            "hello, unknown fields",
            "client",
            {**HELLO, "later": {"x": [1]}, "client": {"name": "r", "os": 1}},
            canonical=False,
        ),
        vector(
            "hello, whole numbers as floats",
            "client",
            {**HELLO, "protocol": [1.0, 0.0], "t_client_ns": 5e9, "hz": 10},
            canonical=False,
        ),
        vector("hello of a later minor version", "client", {**HELLO_FULL, "protocol": [1, 7]}),
        vector(
            "hello, unicode",
            "client",
            {**HELLO_FULL, "client": {"name": "漫遊車", "version": "é", "language": "🚀"}, "instruction": UNICODE},
        ),
        vector("hello, unknown capabilities", "client", {**HELLO_FULL, "capabilities": ["executed", "teleport"]}),
        vector("hello, call without arguments", "client", {**HELLO, "safe_call": {"name": "stop"}}, canonical=False),
        vector("welcome, every field", "server", WELCOME),
        vector("welcome, required fields only", "server", {**bare, "server": {"name": "s"}}, canonical=False),
        vector(
            "welcome, resumed",
            "server",
            {**WELCOME, "resumed": True, "epoch": BIG, "pacing": "client", "on_miss": "safe"},
        ),
        vector(
            "welcome, unknown limits and fields",
            "server",
            {**WELCOME, "limits": {**LIMITS, "max_wheels": 4}, "later": 1},
            canonical=False,
        ),
    ]


def _observations() -> list[Vector]:
    arrays = [
        ("f4", [2], struct.pack("<2f", 1.5, -2.0)),
        ("u1", [2, 3], bytes(range(6))),
        ("b1", [], b"\x01"),
        ("i8", [0, 4], b""),
        ("f8", [1], struct.pack("<d", 0.1)),
        ("i2", [1, 1, 2], struct.pack("<2h", -1, 256)),
        ("u2", [1], struct.pack("<H", 65_535)),
    ]
    entries = [{"name": f"a{i}", "dtype": d, "shape": s} for i, (d, s, _) in enumerate(arrays)]
    rest = [("i1", b"\xff"), ("i4", bytes(4)), ("u4", bytes(4)), ("u8", b"\xff" * 8), ("f2", b"\x00\x3c")]
    kinds = [{"name": d, "dtype": d, "shape": [1]} for d, _ in rest]
    full = {**OBSERVE, "text": "left 40 right 10", "data": NUMBERS}
    return [
        vector("observe, text", "client", {**OBSERVE, "text": "left 40 right 10", "arrays": []}),
        vector("observe, text only", "client", {**OBSERVE, "text": "left 40 right 10"}, canonical=False),
        vector("observe, empty text", "client", {**OBSERVE, "text": "", "arrays": []}),
        vector(
            "observe, unicode", "client", {**OBSERVE, "text": UNICODE, "data": {"键": UNICODE, "": ""}, "arrays": []}
        ),
        vector("observe, numbers", "client", {**full, "arrays": []}),
        vector(
            "observe, nulls inside data stay",
            "client",
            {**OBSERVE, "data": {"x": None, "y": [None, {"z": None}]}, "arrays": []},
        ),
        vector("observe, empty data", "client", {**OBSERVE, "data": {}, "arrays": []}),
        vector(
            "observe, largest counts",
            "client",
            {**OBSERVE, "seq": BIG, "epoch": BIG, "t_ns": BIG, "text": "x", "arrays": []},
        ),
        vector(
            "big: observe, largest instant and integers",
            "client",
            {**OBSERVE, "t_ns": (1 << 63) - 1, "data": {"max": (1 << 64) - 1, "min": -(1 << 63)}, "arrays": []},
        ),
        vector(
            "observe, instant as a float", "client", {**OBSERVE, "t_ns": 5e9, "seq": 1.0, "text": "x"}, canonical=False
        ),
        vector("observe, deepest", "client", {**OBSERVE, "data": _nested(15), "arrays": []}),
        vector("observe, longest list", "client", {**OBSERVE, "data": {"x": [0] * 4096}, "arrays": []}),
        vector("observe, seven arrays", "client", {**full, "arrays": entries}, *(b for _, _, b in arrays)),
        vector("observe, the other dtypes", "client", {**OBSERVE, "arrays": kinds}, *(b for _, b in rest)),
        vector(
            "observe, null text beside data",
            "client",
            {**OBSERVE, "text": None, "data": {"x": 1}, "arrays": None},
            canonical=False,
        ),
    ]


def _nested(depth: int) -> dict[str, Any]:
    return {"d": _nested(depth - 1) if depth > 1 else 1}


def _calls() -> list[Vector]:
    bare = {k: v for k, v in CALL_BARE.items() if k != "timing"}
    return [
        vector("call, fresh", "server", CALL_FULL),
        vector("call, fresh, no arguments", "server", {**CALL_FULL, "call": {"name": "stop", "arguments": {}}}),
        vector("call, fresh, arguments left out", "server", {**CALL_FULL, "call": {"name": "stop"}}, canonical=False),
        vector("call, fresh, goes on", "server", {k: v for k, v in CALL_FULL.items() if k != "call"}),
        vector("call, fresh, null call", "server", {**CALL_FULL, "call": None}, canonical=False),
        vector(
            "call, held", "server", {**CALL_BARE, "status": "held", "cause": "decide", "timing": {"late_ms": 12.25}}
        ),
        vector("call, safe", "server", {**CALL_BARE, "status": "safe", "call": CALL, "cause": "no_observation"}),
        vector("call, safe, no safe call", "server", {**CALL_BARE, "status": "safe"}),
        vector("call, required fields only", "server", {**bare, "status": "safe"}, canonical=False),
        vector("call, integers for numbers", "server", {**CALL_FULL, "ttl_ms": 500, "confidence": 1}),
        vector("call, whole floats for integers", "server", {**CALL_FULL, "tick": 7.0, "epoch": 2.0}),
        vector(
            "call, an unknown cause and field",
            "server",
            {**CALL_BARE, "cause": "eclipse", "later": [1]},
            canonical=False,
        ),
        vector("call, no time limit", "server", {**CALL_FULL, "ttl_ms": 0.0, "confidence": 0.0}),
        vector(
            "big: call, largest instants",
            "server",
            {**CALL_FULL, "t_obs_ns": (1 << 63) - 1, "deadline_ns": (1 << 63) - 1},
        ),
    ]


def _rest() -> list[Vector]:
    ended = {"seed": -3, "return": -12.5, "success": True, "seconds": 8.25}
    both = ("client", "server")
    found = [
        vector("executed", "client", EXECUTED),
        vector("executed, result", "client", {**EXECUTED, "result": UNICODE}),
        vector("executed, failed", "client", {**EXECUTED, "outcome": "failed", "error": "The wheel is stuck."}),
        vector("executed, expired", "client", {**EXECUTED, "outcome": "expired"}),
        vector("executed, refused", "client", {**EXECUTED, "outcome": "refused", "result": None}, canonical=False),
        vector("reset", "client", RESET),
        vector("reset, outcome", "client", {**RESET, "ended": ended}),
        vector("reset, outcome with defaults", "client", {**RESET, "ended": {}}, canonical=False),
        vector("reset, null outcome of success", "client", {**RESET, "ended": {"success": None}}, canonical=False),
    ]
    for side in both:
        found += [
            vector(f"instruct from {side}", side, {"type": "instruct", "session": TOKEN, "instruction": UNICODE}),
            vector(f"ping from {side}", side, {"type": "ping", "id": 0, "t_ns": 0}),
            vector(f"pong from {side}", side, PONG),
            vector(f"error from {side}, every field", side, ERROR_FULL),
            vector(f"error from {side}, required fields only", side, ERROR, canonical=False),
            vector(f"error from {side}, unknown code", side, {**ERROR_FULL, "code": "eclipse"}),
            vector(f"bye from {side}", side, {"type": "bye", "session": TOKEN, "reason": "done"}),
            vector(f"bye from {side}, bare", side, {"type": "bye"}, canonical=False),
        ]
    return found
