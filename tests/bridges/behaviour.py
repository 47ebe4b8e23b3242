"""The behaviour table of all clients (bridges/behaviour/README.md): read its cases and check a client against them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgpack
import pytest

MS = 1_000_000
START_MS = 1000
FOLDER = Path(__file__).resolve().parents[2] / "bridges" / "behaviour"
TOKEN = "a" * 16
CLIENT: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": n}} for n in ("left", "right", "stop", "dim")],
    "instruction": "Go.",
    "safe_calls": [{"name": "stop", "arguments": {}}],
    "ttl_ms": 500.0,
    "persist": False,
    "several": False,
    "crowd": False,
    "fails": [],
}
WELCOME: dict[str, Any] = {
    "protocol": [1, 1],
    "server": {"name": "table"},
    "session": TOKEN,
    "resumed": False,
    "epoch": 0,
    "t_client_ns": "hello",
    "t_server_ns": 0,
    "tools": [],
    "instruction": "Go.",
    "model": "none",
    "model_trained_on_tools": False,
    "pacing": "server",
    "on_miss": "hold",
    "hz": 10.0,
    **dict.fromkeys(("period_ms", "deadline_ms"), 100.0),
    **dict.fromkeys(("ttl_ms", "hold_ms", "max_age_ms"), 500.0),
    "heartbeat_ms": 1000.0,
    "session_grace_s": 30.0,
    "limits": {},
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "welcome": WELCOME,
    "call": {"status": "fresh", "ttl_ms": 500.0, "deadline_ns": 0, "t_server_ns": 0},
    "call_many": {"t_server_ns": 0},
    "error": {"message": "No."},
    "ping": {"id": 7, "t_ns": 0},
    "pong": {"id": 1},
}
INPUTS = {"net", "receive", "bytes", "observe", "instruct", "reset", "full", "busy", "join", "leave", "looks", "sleeps"}
OUTPUTS = {"sends", "pings", "acts", "active", "state", "offset_ms", "connections", "members"}
UNCOUNTED = ("ping", "error")


@dataclass
class Seen:
    """What a client did since the previous step, and its current state."""

    active: str = "none"
    state: str = "away"
    sends: list[dict[str, Any]] = field(default_factory=list)
    acts: list[str] = field(default_factory=list)
    offset_ms: float | None = None
    connections: int = 0
    members: dict[str, str] = field(default_factory=dict)


class Client(Protocol):
    """A client of any language that runs the steps of a case; a complete `step` has `ms` and at most one input."""

    def step(self, step: dict[str, Any]) -> Seen: ...


def options_of(case: dict[str, Any]) -> dict[str, Any]:
    """Return all options of the client in a case."""
    given = {**CLIENT, **case.get("client", {})}
    given["safe_calls"] = [call_map(one) for one in given["safe_calls"]]
    return given


def cases(language: str) -> pytest.MarkDecorator:
    """Return the mark that runs a test for each case, except those that do not apply to the language."""
    found = [
        (path.stem, case) for path in sorted(FOLDER.glob("*.json")) for case in json.loads(path.read_text("utf-8"))
    ]
    names = [f"{stem}: {case['name']}" for stem, case in found]
    assert len(set(names)) == len(names), "two cases with the same name"
    taken = [i for i, (_, case) in enumerate(found) if language not in case.get("except", {})]
    return pytest.mark.parametrize("case", [found[i][1] for i in taken], ids=[names[i] for i in taken])


def call_map(call: Any) -> Any:
    return {"name": call, "arguments": {}} if isinstance(call, str) else call


class Script:
    """Completes the steps of a case with values that a server would know from the conversation."""

    def __init__(self) -> None:
        self._session, self._epoch, self._tick = TOKEN, 0, -1
        self._hello_ns = 0
        self._look: dict[str, Any] = {}
        self._members: dict[str, dict[str, Any]] = {}  # of each member of a crowd: the fields that a call refers to
        self._crowd: dict[str, Any] = {}

    def note(self, sent: Iterable[dict[str, Any]]) -> None:
        """Remember the messages that the client sent."""
        for message in sent:
            if message["type"] == "hello":
                self._hello_ns = message["t_client_ns"]
                self._crowd = {"crowd": {"members": 64, "parts": 64}} if "crowd" in message else {}
            elif message["type"] == "observe":
                self._look = {"seq_obs": message["seq"], "t_obs_ns": message["t_ns"]}
            for member in message.get("members", []):
                self._members[member["id"]] = {"epoch": member["epoch"]}
            for look in message.get("looks", []):
                self._members[look["id"]] |= {"seq_obs": look["seq"], "t_obs_ns": look["t_ns"]}

    def full(self, step: dict[str, Any]) -> dict[str, Any]:
        """Return the step's input and instant, with all required fields of its message."""
        given = {key: step[key] for key in INPUTS & step.keys()}
        if "receive" in given:
            given["receive"] = self._message(given["receive"])
        return {"ms": step["ms"], **given}

    def _message(self, given: dict[str, Any] | str) -> dict[str, Any]:
        given = {"type": given} if isinstance(given, str) else given
        kind = given["type"]
        message: dict[str, Any] = {"type": kind, **DEFAULTS.get(kind, {})}
        if kind == "call_many":
            given = {**given, "calls": [self._part(call) for call in given["calls"]]}
        if kind == "welcome":
            message |= self._crowd
        if kind in ("call", "call_many", "instruct", "control"):
            message["session"] = self._session
        if kind == "call":
            message |= {"tick": self._tick + 1, "epoch": self._epoch}
            message |= self._look if given.get("status", "fresh") == "fresh" else {}
        return self._whole(message | given)

    def _part(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the part of `call_many` for a member."""
        self._tick += 1
        part = {"tick": self._tick, "status": "fresh", "ttl_ms": 500.0, **self._members.get(given["id"], {})}
        return self._whole(part | given)

    def _whole(self, message: dict[str, Any]) -> dict[str, Any]:
        for key in [key for key in message if key.startswith("t_") and key.endswith("_ms")]:
            message[f"{key[:-3]}_ns"] = int(message.pop(key) * MS)
        if message.get("t_client_ns") == "hello":
            message["t_client_ns"] = self._hello_ns
        if "call" in message:
            message["call"] = call_map(message["call"])
        for key in {"calls", "safe_calls"} & message.keys():
            message[key] = [call_map(one) for one in message[key]]
        self._heed(message)
        return {key: value for key, value in message.items() if value is not None}

    def _heed(self, message: dict[str, Any]) -> None:
        if message.get("type") == "welcome" and isinstance(message["session"], str):
            self._session, self._epoch = message["session"], message["epoch"]
            self._tick = self._tick if message["resumed"] else -1
        elif message.get("type") == "call" and message["session"] == self._session and isinstance(message["tick"], int):
            self._tick = max(self._tick, message["tick"])
            self._epoch = message["epoch"]


def steps_of(case: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield each step with its instant, and whether to check it; the steps that open the session are not checked."""
    ms = START_MS
    if case.get("start") != "off":
        for begin in ({"net": "up"}, {"receive": "welcome"}):
            yield {"ms": ms, **begin}, False
    for step in case["steps"]:
        assert step.keys() <= INPUTS | OUTPUTS | {"ms"}, f"unknown: {step.keys() - INPUTS - OUTPUTS}"
        ms = step.get("ms", ms)
        yield {**step, "ms": ms}, True


def check(case: dict[str, Any], client: Client) -> None:
    """Run a client through a case. Raises AssertionError, which names the step and the actual result."""
    script = Script()
    wanted = {"active": "none", "state": "away" if case.get("start") == "off" else "live"}
    members: dict[str, str] = {}
    waiting: list[dict[str, Any]] = []  # sent, but not checked yet
    for number, (step, judged) in enumerate(steps_of(case)):
        observed = client.step(script.full(step))
        script.note(observed.sends)
        if not judged:
            continue
        waiting += [message for message in observed.sends if message["type"] not in UNCOUNTED]
        wanted |= {key: step[key] for key in wanted.keys() & step.keys()}
        members = {name: now for name, now in {**members, **step.get("members", {})}.items() if now is not None}
        found: dict[str, Any] = {
            "active": observed.active,
            "state": observed.state,
            "acts": observed.acts,
            "members": observed.members,
        }
        hope: dict[str, Any] = {**wanted, "acts": step.get("acts", []), "members": members}
        if "pings" in step:
            hope["pings"] = step["pings"]
            found["pings"] = any(message["type"] == "ping" for message in observed.sends)
        for name in {"offset_ms", "connections"} & step.keys():
            hope[name], found[name] = step[name], getattr(observed, name)
        sends = step.get("sends")
        sent = sends is None or same(waiting, [{"type": one} if isinstance(one, str) else one for one in sends])
        if found != hope or not sent:
            pytest.fail(
                f"step {number}: {json.dumps(step)}\nwanted {hope}\nfound  {found}\nsent {waiting}", pytrace=False
            )
        if "sends" in step:
            waiting.clear()
    assert not waiting, f"sent in the end: {waiting}"


def same(found: Any, wanted: Any) -> bool:
    """Return whether lists have the same items, and maps at least the wanted fields; `t_..._ms` is an instant in ns."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key, value in wanted.items():
            if key.startswith("t_") and key.endswith("_ms"):
                key, value = f"{key[:-3]}_ns", int(value * MS)
            if not same(found.get(key), value):
                return False
        return True
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return bool(found == wanted)


class Core(Protocol):
    """A client core without socket and clock, driven by `Shell`."""

    def turn(self, now_ns: int, net: bool, full: bool, busy: bool) -> Seen: ...
    def wake_ns(self, now_ns: int) -> int: ...
    def put(self, step: dict[str, Any], now_ns: int) -> None: ...


class Shell:
    """Does what a client's thread does, at the instants of a case: runs the core at each step, and whenever the core
    wants to wake up between two steps."""

    def __init__(self, core: Core) -> None:
        self._core, self._now_ns = core, START_MS * MS
        self._flags = {"net": False, "full": False, "busy": False}

    def step(self, step: dict[str, Any]) -> Seen:
        at_ns = int(step["ms"] * MS)
        observed = Seen()
        if step.get("sleeps"):
            self._now_ns = at_ns
        while (wake_ns := max(self._core.wake_ns(self._now_ns), self._now_ns + MS)) < at_ns:
            self._now_ns = wake_ns
            self._turn(observed)
        self._now_ns = at_ns
        self._turn(observed)
        for name in self._flags:
            if name in step:
                self._flags[name] = step[name] in (True, "up")
        self._core.put(step, at_ns)
        return self._turn(observed)

    def _turn(self, observed: Seen) -> Seen:
        one = self._core.turn(self._now_ns, **self._flags)
        observed.sends += one.sends
        observed.acts += one.acts
        observed.active, observed.state = one.active, one.state
        observed.offset_ms, observed.connections, observed.members = one.offset_ms, one.connections, one.members
        return observed


class TalkCore:
    """The conversation core of the C++ or C# client, controlled by commands to a driver; this class replaces its
    thread."""

    def __init__(self, ask: Callable[[str], Any], given: dict[str, Any]) -> None:
        self._ask, self._fails, self._several = ask, given["fails"], given["several"]
        self._up, self._retry_ns, self._connections = False, 0, 0
        self._ask(f"talk {msgpack.packb(given).hex()}")
        self._now = self._on("look", START_MS * MS)

    def _on(self, event: str, now_ns: int, *more: Any) -> Any:
        answer = self._ask(" ".join(["on", event, str(now_ns), *(msgpack.packb(one).hex() for one in more)]))
        if isinstance(answer, dict) and "open" in answer:
            self._now = answer
        return answer

    def wake_ns(self, now_ns: int) -> int:
        return int(self._now["wake_ns"]) if self._up else max(now_ns + MS, self._retry_ns)

    def put(self, step: dict[str, Any], now_ns: int) -> None:
        for name, event in (("receive", "hear"), ("observe",) * 2, ("instruct",) * 2, ("reset",) * 2):
            if name in step:
                self._on(event, now_ns, step[name])
        if "bytes" in step:
            self._ask(f"on hear {now_ns} {step['bytes'].encode().hex()}")

    def turn(self, now_ns: int, net: bool, full: bool, busy: bool) -> Seen:
        observed = Seen()
        self._on("look", now_ns)
        if self._up and (not net or self._now["gone"]):
            self._up = False
            self._retry_ns = now_ns + (0 if self._now["at_once"] else 100 * MS)
            self._on("lost", now_ns)
        if net and not self._up and now_ns >= self._retry_ns and self._now["ended"] is None:
            if self._several and self._connections:
                self._on("elsewhere", now_ns)
            self._up = True
            self._connections += 1
            self._on("connected", now_ns)
        while True:
            due = self._on("due", now_ns) if self._up else []
            if due and full:
                self._on("unsaid", now_ns)
            else:
                observed.sends += due
            self._on("clock", now_ns)
            if busy or not self._now["begins"]:
                break
            self._carry_out(observed, now_ns)
        now = self._now
        names = "+".join(call["name"] for call in now["calls"])
        observed.active = {"none": "none", "safe": f"safe {now['cause']}", "call": f"call {names}"}[now["in_force"]]
        observed.state = "ended" if now["ended"] is not None else "live" if now["open"] else "away"
        observed.offset_ms = None if now["clock"] is None else now["clock"] / MS
        observed.connections = self._connections
        return observed

    def _carry_out(self, observed: Seen, now_ns: int) -> None:
        names = [call["name"] for call in self._now["execute"]]
        observed.acts += names
        self._on("take", now_ns)
        self._on("done", now_ns, "failed" if set(names) & set(self._fails) else "executed")
