"""A policy server that misbehaves by plan, and the causes that a miss may have for each of its faults."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from rtcontrol.agents import Range, tool
from rtcontrol.hosts.array_message import pack_message as pack
from rtcontrol.hosts.array_message import unpack_message as unpack

MAPPING = "observation: {observation/state: [n]}\nhorizon: 1\n"


@tool
def press(force: Annotated[float, Range(-1.0, 1.0)]) -> None:
    """Press with this force; -1 lets go."""


@dataclass(frozen=True)
class PolicyFault:
    """`about` for people; `called`: causes and sub-causes that are true of it."""

    about: str
    called: tuple[str, ...]


LOST = ("decide.timeout", "decide.connection")
MALFORMED = ("decide.malformed",)
POLICY_FAULTS: Mapping[str, PolicyFault] = {
    "frozen": PolicyFault("no answer; pings are answered", ("decide.timeout",)),
    "half_open": PolicyFault("nothing is read or sent any more, and the connection stays open", ("decide.timeout",)),
    "late": PolicyFault("the right answer two deadlines late, on the same connection", ("decide.timeout",)),
    "drip": PolicyFault("the right answer a byte at a time, too slowly", LOST),
    "close": PolicyFault("the connection is closed in place of an answer", ("decide.connection",)),
    "close_midway": PolicyFault("the connection is cut in the midst of the answer", ("decide.connection",)),
    "endless": PolicyFault("an answer that says it is a terabyte long", ("decide.malformed", "decide.connection")),
    "traceback": PolicyFault("a traceback as text, and the end of the connection", ("decide.server_error",)),
    "garbage": PolicyFault("random bytes", MALFORMED),
    "truncated": PolicyFault("half of an answer, whole as a message", MALFORMED),
    "no_actions": PolicyFault("an answer without actions", MALFORMED),
    "empty": PolicyFault("no action", MALFORMED),
    "wrong_shape": PolicyFault("two numbers an action in place of one", MALFORMED),
    "batch": PolicyFault("a batch of chunks", MALFORMED),
    "wrong_dtype": PolicyFault("actions of whole numbers", MALFORMED),
    "text_actions": PolicyFault("actions of text", MALFORMED),
    "wrong_size": PolicyFault("an array with fewer bytes than its shape says", MALFORMED),
    "nan": PolicyFault("NaN in the action", ("decide.not_finite",)),
    "inf": PolicyFault("infinity in the action", ("decide.not_finite",)),
    "out_of_bounds": PolicyFault("a number that the tool does not allow", ("invalid",)),
    "replay": PolicyFault("an earlier answer, byte for byte", ("decide.repeated",)),
    "two_answers": PolicyFault(
        "an earlier answer, and the right one right behind it", ("decide.malformed", "decide.repeated")
    ),
    "nan_then_right": PolicyFault("NaN, and the right answer behind the next question", ("decide.not_finite",)),
    "illegal_then_right": PolicyFault("an illegal number, and the right answer behind the next question", ("invalid",)),
    "not_fresh": PolicyFault("an answer that says that it is a fallback", ("decide.refused",)),
}


STATE, ROWS = "observation/state", 4
NEW_LOOKS = 12  # observations before the first fault: those of a warm-up are all the same
APART = 2  # good answers between two faults
SLOW_S = 0.02  # between two bytes
THEN_RIGHT = {"nan_then_right": "nan", "illegal_then_right": "out_of_bounds"}  # the right answer follows such a one


def good_force(n: int) -> float:
    """What the right answer to observation `n` calls: each has a force of its own, between 0 and 1."""
    return float(np.float32(0.001 + (n % 90_000) * 1e-5))


class WrongPolicy:
    """Who answers, on all connections."""

    def __init__(self, plan: list[str], log: Path, deadline_s: float) -> None:
        self._plan, self._deadline_s = plan, deadline_s
        self._log = log.open("a", buffering=1)
        self._chance = random.Random(len(plan))
        self._looks = self._good = 0
        self._last: int | None = None
        self._fault: str | None = None  # of the last one
        self._earlier = b""  # an answer that was good, and had

    async def serve(self, connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await connection.send(pack({"name": "drill", "action_dim": 1, "action_horizon": ROWS}))
            sent: bytes | None = None
            async for asked in connection:
                if sent is not None:  # who asks again on a connection had its last answer
                    self._earlier = sent
                assert isinstance(asked, bytes), "a question is binary"
                n = int(unpack(asked)[STATE][0])
                fault = self._next(n)
                self._log.write(json.dumps({"n": n, "fault": fault}) + "\n")
                if fault is None:
                    said = self._answer(n)
                    await connection.send(said)
                    sent = said
                else:
                    await self._misbehave(connection, n, fault)

    def _next(self, n: int) -> str | None:
        """The fault of this question, where one is due."""
        if n == self._last:  # the world stood still: once wrong, always so
            return self._fault
        self._last, self._looks, self._fault = n, self._looks + 1, None
        if self._looks < NEW_LOOKS or self._good < APART or not self._plan or not self._earlier:
            self._good += 1
        else:
            self._good, self._fault = 0, self._plan.pop(0)
        return self._fault

    def _answer(self, n: int, actions: Any = None, **more: Any) -> bytes:
        rows = [[good_force(n)]] * ROWS if actions is None else actions
        made = np.array(rows, np.float32) if isinstance(rows, list) else rows
        return pack({"actions": made, "server_timing": {"infer_ms": time.perf_counter() * 1e3}, **more})

    async def _misbehave(self, connection: ServerConnection, n: int, fault: str) -> None:
        transport = connection.transport
        if fault == "frozen":
            return
        if fault == "half_open":
            transport.pause_reading()  # its pings, too, are never answered
            await asyncio.sleep(60)
        elif fault == "late":
            await asyncio.sleep(2 * self._deadline_s)
            await connection.send(self._answer(n))
        elif fault in ("drip", "close_midway", "endless"):
            await self._cut_short(transport, self._answer(n), fault)
        elif fault == "close":
            await connection.close()
        elif fault == "traceback":
            await connection.send("Traceback (most recent call last):\n  ...\nRuntimeError: CUDA out of memory")
            await connection.close(1011)
        elif fault == "two_answers":
            await connection.send(self._earlier)
            await connection.send(self._answer(n))
        elif fault in THEN_RIGHT:
            await connection.send(self._wrong(n, THEN_RIGHT[fault]))
            await asyncio.sleep(1.2 * self._deadline_s)
            await connection.send(self._answer(n))
        else:
            await connection.send(self._wrong(n, fault))

    @staticmethod
    async def _cut_short(transport: asyncio.Transport, said: bytes, fault: str) -> None:
        """Of a frame that begins as a binary message."""
        size = (1 << 40).to_bytes(8) if fault == "endless" else len(said).to_bytes(8)
        frame = b"\x82\x7f" + size + said
        if fault == "drip":
            for i in range(len(frame)):
                if transport.is_closing():
                    return
                transport.write(frame[i : i + 1])
                await asyncio.sleep(SLOW_S)
            return
        transport.write(frame[: len(frame) // 2] if fault == "close_midway" else frame)
        await asyncio.sleep(0.005)
        if fault == "close_midway":
            transport.abort()

    def _wrong(self, n: int, fault: str) -> bytes:
        force = good_force(n)
        one = np.full((ROWS, 1), force, np.float32)
        wrong: dict[str, Any] = {
            "empty": np.zeros((0, 1), np.float32),
            "wrong_shape": np.full((ROWS, 2), force, np.float32),
            "batch": one[None],
            "wrong_dtype": np.ones((ROWS, 1), np.int64),
            "text_actions": np.full((ROWS, 1), "1"),
            "nan": one * np.float32("nan"),
            "inf": one * np.float32("inf"),
            "out_of_bounds": one + 5,
        }
        if fault in wrong:
            return self._answer(n, wrong[fault])
        if fault == "garbage":
            return self._chance.randbytes(200)
        if fault == "truncated":
            said = self._answer(n)
            return said[: len(said) // 2]
        if fault == "no_actions":
            return pack({"server_timing": {"infer_ms": 1.0}})
        if fault == "wrong_size":
            fields = {b"__ndarray__": True, b"data": b"\x00" * 7, b"dtype": "<f4", b"shape": [ROWS, 1]}
            return pack({"actions": fields})
        if fault == "replay":
            return self._earlier
        if fault == "not_fresh":
            return self._answer(n, status="held")
        raise ValueError(fault)
