"""Check the Python client's core against the behaviour table, without socket and clock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgpack

from rtcontrol_client.client.active import ActiveStanding
from rtcontrol_client.client.core import Core
from rtcontrol_client.client.crowd import CrowdCore, CrowdOptions
from rtcontrol_client.client.options import Options
from rtcontrol_client.wire import WireError, decode_msgpack, encode_json
from rtcontrol_client.wire.messages import ObservationPart, Observe, Outcome
from tests.bridges.behaviour import MS, START_MS, Seen, Shell, cases, check, options_of


def active(call: ActiveStanding, now_ns: int) -> str:
    """Return the active call in the table's notation."""
    now = call.standing_at(now_ns)
    if call.kind == "none":
        return "none"
    return f"safe {now.cause}" if now.status == "safe" else f"call {'+'.join(each.name for each in now.calls)}"


class PythonCore:
    """The core of the Python client, with a simulated network and a handler that executes each call at once."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._fails, several, _ = given.pop("fails"), given.pop("several"), given.pop("crowd")
        safe = given.pop("safe_calls")
        self._core = self._make({**given, "safe_call": safe or None})
        self._core.connection.has_several_servers = several
        self._dialled, self._connections = True, 0

    def _make(self, given: dict[str, Any]) -> Core:
        return Core(Options(**given, on_call=print), START_MS * MS)

    def wake_ns(self, now_ns: int) -> int:
        return self._core.wake_ns(now_ns)

    def put(self, step: dict[str, Any], now_ns: int) -> None:
        if "receive" in step:
            self._receive([msgpack.packb(step["receive"])], now_ns)
        if "bytes" in step:
            self._receive([step["bytes"].encode()], now_ns)
        if "observe" in step:
            text = step["observe"]
            self._core.observe(Observe(session="-" * 16, seq=0, epoch=0, t_ns=now_ns, text=text))
        if "instruct" in step:
            self._core.instruct(step["instruct"])
        if "reset" in step:
            self._core.reset(Outcome.model_validate(step["reset"]) if step["reset"] else None)

    def _receive(self, parts: Sequence[bytes], now_ns: int) -> None:
        try:
            message = decode_msgpack(parts)
        except WireError:
            return
        self._core.receive(message, now_ns)

    def turn(self, now_ns: int, net: bool, full: bool, busy: bool) -> Seen:
        core, observed = self._core, Seen()
        if core.connection.is_up and not net:
            core.on_lost(now_ns, "cut")
        if core.should_reconnect(now_ns):
            self._dialled = True
            if core.connection.has_several_servers:
                core.forget_server()
        if self._dialled and net and core.error is None:
            self._dialled = False
            self._connections += 1
            core.on_connected(now_ns)
        core.expire(now_ns)
        self._send(observed, now_ns, full)
        while not busy and self._act(observed, now_ns):
            self._send(observed, now_ns, full)
        self._send(observed, now_ns, full)
        observed.active = active(core.active, now_ns)
        observed.state = "ended" if core.error else "live" if core.connection.is_open else "away"
        offset = core.ticks.offset.best_offset(now_ns)
        observed.offset_ms = None if offset is None else offset.offset_ns / MS
        observed.connections = self._connections
        return observed

    def _send(self, observed: Seen, now_ns: int, full: bool) -> None:
        due = self._core.due_messages(now_ns)
        if due and full:
            self._core.requeue_messages(due, now_ns)
        else:
            observed.sends += [json.loads(encode_json(message)) for message in due]

    def _act(self, observed: Seen, now_ns: int) -> bool:
        standing = self._core.pop_call(False, now_ns)
        if standing is None:
            return False
        names = [call.name for call in standing.calls]
        observed.acts += names
        failed = [name for name in names if name in self._fails]
        self._core.acknowledge(standing, "failed" if failed else "executed", now_ns, error="No." if failed else None)
        return True


class PythonCrowd(PythonCore):
    """The core of a crowd, which executes nothing: the caller queries the active call of each member."""

    _core: CrowdCore

    def _make(self, given: dict[str, Any]) -> Core:
        return CrowdCore(CrowdOptions(**given), START_MS * MS)

    def put(self, step: dict[str, Any], now_ns: int) -> None:
        super().put(step, now_ns)
        if "join" in step:
            self._core.join(step["join"])
        if "leave" in step:
            self._core.leave([step["leave"]])
        for name, text in step.get("looks", {}).items():
            self._core.queue_observation(ObservationPart(id=name, seq=0, t_ns=now_ns, text=text))

    def turn(self, now_ns: int, net: bool, full: bool, busy: bool) -> Seen:
        observed = super().turn(now_ns, net, full, busy)
        observed.active = "none"
        for name, member in self._core.members.items():
            observed.members[name] = "safe refused" if member.refusal else active(member.active, now_ns)
        return observed


@cases("python")
def test_python_core_follows_the_behaviour_table(case: dict[str, Any]) -> None:
    given = options_of(case)
    check(case, Shell(PythonCrowd(given) if given["crowd"] else PythonCore(given)))
