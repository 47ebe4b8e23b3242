"""Cases of the client's own rules: time-to-live and clock offset. Written down by hand, not taken from the code."""

from __future__ import annotations

from typing import Any

from tests.conformance.generate.valid import TOKEN

MS = 1_000_000
LEFT = {"name": "steer", "arguments": {"angle": -10}}
RIGHT = {"name": "steer", "arguments": {"angle": 10}}
STOP = {"name": "steer", "arguments": {"angle": 0}}
BRAKE = {"name": "brake", "arguments": {}}


def ttl() -> dict[str, Any]:
    """Ages of single calls, and sequences of what is in force."""
    return {"age": _ages(), "sequences": _sequences()}


def _ages() -> list[dict[str, Any]]:
    cases: list[tuple[str, int | None, float, int, str]] = [
        ("at once", 1000 * MS, 500, 1000 * MS, "execute"),
        ("in the middle", 1000 * MS, 500, 1250 * MS, "execute"),
        ("at the last instant", 1000 * MS, 500, 1500 * MS, "execute"),
        ("a nanosecond later", 1000 * MS, 500, 1500 * MS + 1, "expire"),
        ("long ago", 1000 * MS, 500, 60_000 * MS, "expire"),
        ("no limit", 1000 * MS, 0, 10**15, "execute"),
        ("a fraction of a millisecond", 0, 0.25, 250_000, "execute"),
        ("a fraction of a millisecond, later", 0, 0.25, 250_001, "expire"),
        ("the largest", 0, 1e9, 10**15, "execute"),
        ("a stamp of the future", 1000 * MS, 500, 1000 * MS - 1, "expire"),
        ("a stamp of the future, no limit", 1000 * MS, 0, 999 * MS, "expire"),
        ("no stamp", None, 500, 1000 * MS, "expire"),
        ("no stamp, no limit", None, 0, 1000 * MS, "expire"),
        ("big: instants beyond 2^53", (1 << 62) + 1, 500, (1 << 62) + 1 + 500 * MS, "execute"),
        ("big: instants beyond 2^53, later", (1 << 62) + 1, 500, (1 << 62) + 2 + 500 * MS, "expire"),
    ]
    keys = ("name", "t_obs_ns", "ttl_ms", "now_ns", "verdict")
    return [dict(zip(keys, case, strict=True)) for case in cases]


def _call(tick: int, status: str, seen_ms: int | None, call: Any = None, ttl_ms: float = 500, epoch: int = 0) -> Any:
    message: dict[str, Any] = {"type": "call", "session": TOKEN, "tick": tick, "epoch": epoch, "status": status}
    if seen_ms is not None:
        message |= {"seq_obs": tick, "t_obs_ns": seen_ms * MS}
    if call is not None:
        message["call"] = call
    return message | {"ttl_ms": ttl_ms, "deadline_ns": 1, "t_server_ns": 1}


def _step(
    now_ms: float, event: Any, execute: Any, in_force: str, until_ms: float | None = None, expired: bool = False
) -> dict[str, Any]:
    """`event`: a message, an int (reset to this epoch), `_welcome(epoch)`, or None (a look)."""
    step: dict[str, Any] = {"now_ns": round(now_ms * MS)}
    if isinstance(event, int):
        step["reset"] = event
    elif event is not None:
        step |= event if "welcome" in event else {"message": event}
    until = None if until_ms is None else round(until_ms * MS)
    return step | {"execute": execute, "in_force": in_force, "expires_ns": until, "expired": expired}


def _welcome(epoch: int) -> Any:
    return {"welcome": epoch}


def _fresh(tick: int, seen_ms: int | None, call: Any = None, **more: Any) -> Any:
    return _call(tick, "fresh", seen_ms, call, **more)


def _sequences() -> list[dict[str, Any]]:
    def of(name: str, *steps: dict[str, Any], safe_call: Any = STOP) -> dict[str, Any]:
        return {"name": name, "epoch": 0, "safe_call": safe_call, "steps": list(steps)}

    first = _step(31, _fresh(0, 0, LEFT), LEFT, "call", 500)
    return [
        of(
            "the example of section 7",
            _step(5071, _fresh(0, 5040, LEFT), LEFT, "call", 5540),
            _step(5171, _call(1, "held", None), None, "call", 5540),
            _step(5270, _fresh(2, 5200), None, "call", 5700),
            _step(5700, None, None, "call", 5700),
            _step(5700.000001, None, STOP, "safe"),
            _step(5800, _fresh(3, 5240, RIGHT), None, "safe", expired=True),
            _step(5820, _fresh(4, 5790, RIGHT), RIGHT, "call", 6290),
        ),
        of("nothing in force, nothing to do", _step(0, None, None, "none"), _step(9999, None, None, "none")),
        of(
            "held and null before any call",
            _step(1, _call(0, "held", 0), None, "none"),
            _step(2, _fresh(1, 1), None, "none"),
        ),
        of("safe first", _step(1, _call(0, "safe", None, STOP), STOP, "safe"), _step(999, None, None, "safe")),
        of(
            "safe is executed once",
            first,
            _step(100, _call(1, "safe", 0, STOP), STOP, "safe"),
            _step(200, _call(2, "safe", 0, STOP), None, "safe"),
        ),
        of("safe is obeyed however old", first, _step(400, _call(1, "safe", 0, BRAKE, ttl_ms=1), BRAKE, "safe")),
        of("safe without a call is the client's own", first, _step(100, _call(1, "safe", None), STOP, "safe")),
        of("no safe call at all", first, _step(501, None, None, "safe"), safe_call=None),
        of(
            "a call ends safe",
            first,
            _step(100, _call(1, "safe", 0, STOP), STOP, "safe"),
            _step(150, _fresh(2, 120, RIGHT), RIGHT, "call", 620),
        ),
        of(
            "held does not renew",
            first,
            _step(450, _call(1, "held", 440), None, "call", 500),
            _step(501, _call(2, "held", 490), STOP, "safe"),
        ),
        of(
            "null renews",
            first,
            _step(450, _fresh(1, 440), None, "call", 940),
            _step(940, None, None, "call", 940),
            _step(941, None, STOP, "safe"),
        ),
        of(
            "an old null does not renew",
            first,
            _step(480, _fresh(1, 0, ttl_ms=400), None, "call", 500),
            _step(501, None, STOP, "safe"),
        ),
        of(
            "null does not revive",
            first,
            _step(600, _fresh(1, 590), STOP, "safe"),
            _step(700, _fresh(2, 690), None, "safe"),
        ),
        of(
            "a fresh call instead of one that ran out unseen",
            first,
            _step(600, _fresh(1, 590, RIGHT), RIGHT, "call", 1090),
        ),
        of("an expired call while one runs out", first, _step(600, _fresh(1, 10, RIGHT), STOP, "safe", expired=True)),
        of(
            "an expired call leaves the one in force",
            _step(31, _fresh(0, 30, LEFT), LEFT, "call", 530),
            _step(520, _fresh(1, 10, RIGHT), None, "call", 530, True),
        ),
        of("the same tick again", first, _step(100, _fresh(0, 90, RIGHT), None, "call", 500)),
        of(
            "an older tick",
            _step(31, _fresh(5, 0, LEFT), LEFT, "call", 500),
            _step(100, _fresh(4, 90, RIGHT), None, "call", 500),
        ),
        of(
            "an old safe of an older tick",
            _step(31, _fresh(5, 0, LEFT), LEFT, "call", 500),
            _step(100, _call(4, "safe", 0, STOP), None, "call", 500),
        ),
        of("a gap in the ticks", first, _step(100, _fresh(900, 90, RIGHT), RIGHT, "call", 590)),
        of(
            "another epoch",
            first,
            _step(100, _fresh(1, 90, RIGHT, epoch=1), None, "call", 500),
            _step(110, _fresh(2, 100, RIGHT), RIGHT, "call", 600),
        ),
        of(
            "an ignored message does not hide that time ran out", first, _step(501, _fresh(0, 500, RIGHT), STOP, "safe")
        ),
        of(
            "reset",
            first,
            _step(100, 1, None, "none"),
            _step(110, _fresh(1, 90, RIGHT), None, "none"),
            _step(120, _fresh(1, 115, RIGHT, epoch=1), RIGHT, "call", 615),
        ),
        of(
            "safe again after a reset",
            first,
            _step(100, _call(1, "safe", 0, STOP), STOP, "safe"),
            _step(110, 1, None, "none"),
            _step(120, _call(2, "safe", None, STOP, epoch=1), STOP, "safe"),
        ),
        of(
            "ticks go on across a reset",
            _step(31, _fresh(5, 0, LEFT), LEFT, "call", 500),
            _step(100, 1, None, "none"),
            _step(110, _fresh(5, 105, RIGHT, epoch=1), None, "none"),
        ),
        of(
            "the welcome of a new session ends the call of the old one, and ticks begin anew",
            _step(31, _fresh(7, 0, LEFT), LEFT, "call", 500),
            _step(100, _welcome(0), STOP, "none"),
            _step(110, _fresh(0, 105, RIGHT), RIGHT, "call", 605),
        ),
        of(
            "a new session while safe, or with nothing in force",
            _step(10, _welcome(0), None, "none"),
            _step(31, _call(3, "safe", 0, STOP), STOP, "safe"),
            _step(100, _welcome(0), None, "none"),
            _step(110, _call(0, "safe", None, STOP), STOP, "safe"),
        ),
        of(
            "a new session in another epoch, of a call without limit",
            _step(31, _fresh(0, 0, LEFT, ttl_ms=0), LEFT, "call"),
            _step(100, 1, None, "none"),
            _step(120, _fresh(1, 115, RIGHT, ttl_ms=0, epoch=1), RIGHT, "call"),
            _step(200, _welcome(0), STOP, "none"),
            _step(210, _fresh(2, 205, RIGHT, epoch=1), None, "none"),
            _step(220, _fresh(0, 215, LEFT), LEFT, "call", 715),
        ),
        of(
            "no limit",
            _step(31, _fresh(0, 0, LEFT, ttl_ms=0), LEFT, "call"),
            _step(10**9, None, None, "call"),
            _step(10**9, _call(1, "safe", None, STOP), STOP, "safe"),
        ),
        of("no stamp", _step(31, _fresh(0, None, LEFT), None, "none", expired=True)),
        of("a stamp of the future", _step(31, _fresh(0, 32, LEFT), None, "none", expired=True)),
        of("held with a call in it", first, _step(100, _call(1, "held", 90, RIGHT), None, "call", 500)),
        *_several(),
    ]


def _several() -> list[dict[str, Any]]:
    """Of 1.1: `execute` is a list, and so are the safe calls."""

    def of(name: str, *steps: dict[str, Any]) -> dict[str, Any]:
        both = [STOP, BRAKE]
        return {"name": f"1.1: {name}", "minor": 1, "epoch": 0, "safe_calls": both, "steps": list(steps)}

    first = _step(31, _fresh(0, 0, LEFT), [LEFT], "call", 500)
    safe = {**_call(1, "safe", 0, BRAKE), "calls": [BRAKE, STOP]}
    return [
        of(
            "all safe calls when time runs out",
            first,
            _step(501, None, [STOP, BRAKE], "safe"),
            _step(502, None, [], "safe"),
        ),
        of("those of the message, in its order", first, _step(100, safe, [BRAKE, STOP], "safe")),
        of("a safe message with one call", first, _step(100, _call(1, "safe", 0, BRAKE), [BRAKE], "safe")),
        of("a safe message without calls", first, _step(100, _call(1, "safe", None), [STOP, BRAKE], "safe")),
    ]


def clock() -> list[dict[str, Any]]:
    """Exchanges [t0, t1, t2, t3] and the offset that is believed after them."""
    big = 1 << 62
    minute = 60_000 * MS
    cases: list[tuple[str, list[list[int]], int | None, int | None]] = [
        ("the example of section 6", [[1000, 51_200, 51_300, 1500]], 50_000, 400),
        ("equal clocks", [[1000, 1100, 1100, 1200]], 0, 200),
        ("the other side behind", [[1_000_000, 200, 300, 1_000_500]], -1_000_000, 400),
        ("no time at all", [[5, 5, 5, 5]], 0, 0),
        ("an odd sum", [[0, 10, 10, 1]], 9, 1),
        ("all the delay on the way there", [[0, 1400, 1400, 400]], 1200, 400),
        ("a round trip below zero", [[1000, 1000, 2000, 1500]], None, None),
        ("an answer before the question", [[1000, 5, 5, 900]], None, None),
        ("a backward clock over there", [[1000, 60, 50, 1500]], None, None),
        ("none", [], None, None),
        (
            "the shortest round trip wins",
            [[0, 1100, 1100, 200], [1000, 2500, 2500, 4000], [5000, 6010, 6010, 5020]],
            1000,
            20,
        ),
        ("a bad sample changes nothing", [[0, 1100, 1100, 200], [1000, 1000, 2000, 1500]], 1000, 200),
        ("of equal ones the newest", [[0, 1100, 1100, 200], [1000, 2101, 2101, 1200]], 1001, 200),
        (
            "after 16 more the best one is forgotten",
            [[0, 7, 7, 0], *([k * 100, k * 100 + 60, k * 100 + 60, k * 100 + 100] for k in range(1, 17))],
            10,
            100,
        ),
        (
            "after 15 more it is not",
            [[0, 7, 7, 0], *([k * 100, k * 100 + 60, k * 100 + 60, k * 100 + 100] for k in range(1, 16))],
            7,
            0,
        ),
        ("after 60 s it is still believed", [[0, 7, 7, 0], [minute - 100, minute - 40, minute - 40, minute]], 7, 0),
        ("a nanosecond later it is not", [[0, 7, 7, 0], [minute - 99, minute - 39, minute - 39, minute + 1]], 10, 100),
        ("big: instants beyond 2^53", [[big, 1001, 1001, big + 2]], 1000 - big, 2),
    ]
    return [
        {
            "name": name,
            "samples": samples,
            "offset_ns": offset,
            "rtt_ns": rtt,
            "error_ns": None if rtt is None else rtt / 2,
        }
        for name, samples, offset, rtt in cases
    ]
