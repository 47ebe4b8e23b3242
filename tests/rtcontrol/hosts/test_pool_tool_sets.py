"""Requests of /v1 at a pool: each gets its own answer, on whichever thread it is waited for."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import pytest
from pooled import TOOLS, kept_pid, naming, tools

from rtcontrol.gateway.decide import ToolSets, Unavailable
from rtcontrol.gateway.errors import Tools
from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.hosts.ray_pool import RayPool

pytestmark = pytest.mark.serial
GO, TURN = (tools(named) for named in TOOLS[:2])


def tool_sets(pool: DecoderPool, decide_timeout_s: float = 20.0) -> ToolSets:
    return ToolSets(pool, lambda tools, allow_null: naming("go"), 2, decide_timeout_s, 60.0)


async def told(sets: ToolSets, what: str, instruction: str = "go", offered: Tools = GO) -> Any:
    call = (await sets.decide(offered, instruction, what)).decision.call
    assert call is not None
    return call.arguments["at"]


async def told_in_the_end(sets: ToolSets, what: str, offered: Tools = GO) -> Any:
    give_up = time.monotonic() + 40
    while True:
        try:
            return await told(sets, what, offered=offered)
        except Unavailable:
            assert time.monotonic() < give_up
            await asyncio.sleep(0.05)


def test_requests_one_by_one_and_at_once_get_their_own_answers(pool: DecoderPool) -> None:
    async def ask() -> None:
        sets = tool_sets(pool)
        for k in range(5):
            assert await told(sets, f"alone {k}") == f"alone {k}"
        for k in range(5):
            asked = [f"round {k}, {i}" for i in range(6)]
            assert await asyncio.gather(*(told(sets, one, "sleep 0.01") for one in asked)) == asked
        sets.close()

    asyncio.run(ask())


def test_a_late_answer_is_nobody_elses(ray_pool: RayPool) -> None:
    async def ask() -> None:
        sets = tool_sets(ray_pool, 0.3)
        await told_in_the_end(sets, "first")
        for k in range(3):
            with pytest.raises(Unavailable):
                await told(sets, f"late {k}", "sleep 0.5")
            assert await told_in_the_end(sets, f"next {k}") == f"next {k}"
        sets.close()

    asyncio.run(ask())


def test_requests_to_a_lost_process_are_told_at_once_and_answered_again(ray_pool: RayPool) -> None:
    async def ask() -> None:
        sets = tool_sets(ray_pool, 60.0)
        for offered in (TURN, GO):
            await told_in_the_end(sets, "before", offered)
        # Of two at once the second is waited for on a thread of its own, and one alone on the event loop's.
        soon, *waiting = (asyncio.create_task(told(sets, "x", f"sleep {s}", TURN)) for s in (0.1, 30))
        await soon
        await asyncio.sleep(0.1)
        waiting.append(asyncio.create_task(told(sets, "x", offered=GO)))
        await asyncio.sleep(0.1)
        os.kill(kept_pid(ray_pool), signal.SIGKILL)
        lost = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
        assert [str(one) for one in lost] == ["the decoder was lost"] * 2
        assert await told_in_the_end(sets, "after") == "after"
        sets.close()

    asyncio.run(ask())
