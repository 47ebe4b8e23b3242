"""`rtcontrol mcp`: the official client supervises real runs over stdio and HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gateway_peer import Flying
from websockets.sync.client import connect

from rtcontrol.envs.pictures import encode_png
from rtcontrol_client import Client as Robot
from rtcontrol_client.wire.pictures import MAX_PICTURE_BYTES
from tests.bridges.client.worlds import OWN
from tests.bridges.wire.test_picture_files import enlarged, jpeg
from tests.helpers.processes import Program, environment, free_port, until
from tests.rtcontrol.commands import report_in, settings

pytest.importorskip("mcp", reason="the mcp extra is not installed")
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

GO = {"name": "go", "description": "Drive on.", "parameters": {"type": "object", "properties": {}}}
LOOKING = {"status", "misses", "pause", "stop", "deny"}
ACTING = {"instruct", "resume", "confirm"}


def done(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 100))


def command(url: str, *more: str) -> list[str]:
    return ["-m", "rtcontrol", "mcp", "--connect", url, *more]


@asynccontextmanager
async def agent(url: str, *more: str) -> AsyncIterator[Client]:
    """Return the official client, which starts the server like a coding agent."""
    fields = StdioServerParameters(command=sys.executable, args=command(url, *more), env=environment())
    async with Client(fields) as client:
        yield client


async def called(client: Client, name: str, **arguments: Any) -> Any:
    """Return a tool's answer. Raises AssertionError with the text of an error."""
    result = await client.call_tool(name, arguments)
    text = "".join(getattr(part, "text", "") for part in result.content)
    assert not result.is_error, text
    return json.loads(text) if name in ("status", "misses") else text


async def refused(client: Client, name: str, **arguments: Any) -> str:
    result = await client.call_tool(name, arguments)
    assert result.is_error
    return "".join(getattr(part, "text", "") for part in result.content)


async def status(client: Client, **wanted: Any) -> dict[str, Any]:
    """Return the first status that has all the wanted values."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        matches = dict(await called(client, "status"))
        if all(matches.get(name) == value for name, value in wanted.items()):
            return matches
        await asyncio.sleep(0.05)
    raise AssertionError(f"not so: {wanted}, but {matches}")


def test_agent_instructs_pauses_resumes_and_stops_a_run(separate: Flying) -> None:
    async def supervise() -> None:
        async with agent(separate.url, "--instruct") as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == LOOKING | ACTING
            shown = await status(client, connected=True, phase="running", state="running")
            assert shown["env"] == "lander"
            assert shown["counts"]["releases"] > 0
            assert "active: 'hover at 0.7'" in await called(client, "instruct", text="hover at 0.7")
            for _ in range(2):  # harmless to repeat
                await called(client, "pause")
                await status(client, state="paused")
            await called(client, "resume")
            await status(client, state="running")
            await called(client, "stop")
            gone = await status(client, connected=False)
            assert gone["over"] and gone["counts"]["on_time"] > 0

    done(supervise())
    assert separate.popen.wait(30) == 0
    assert report_in(separate.out)["ended_by"] == "stop"


def test_agent_without_instruct_can_only_make_safe(separate: Flying) -> None:
    async def supervise() -> None:
        async with agent(separate.url) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == LOOKING
            await status(client, connected=True, state="running")
            for name in sorted(ACTING):
                fields = {"text": "hover at 0.7"} if name == "instruct" else {}
                assert "Unknown tool" in await refused(client, name, **fields)
            await called(client, "pause")
            before = await status(client, state="paused")
            running = before["counts"]["held"]
            while before["counts"]["held"] < running + 3:  # ticks that were released before the pause end as they may
                before = await status(client, state="paused")
            after = before
            while after["counts"]["ticks"] < before["counts"]["ticks"] + 9:
                after = await status(client, state="paused")
            more = {name: after["counts"][name] - before["counts"][name] for name in ("ticks", "held")}
            assert more["held"] == more["ticks"]
            assert after["counts"]["safe_calls"] > 0
            assert after["instruction"] != "hover at 0.7"

    done(supervise())


def test_server_starts_before_its_run_and_follows(tmp_path: Path) -> None:
    port = free_port()

    async def supervise() -> None:
        async with agent(f"http://127.0.0.1:{port}") as client:
            shown = await status(client, connected=False)
            assert "does not answer" in shown["why"] or "nothing answered" in shown["why"]
            assert "There is no connection" in await refused(client, "pause")
            for name in ("one", "two"):
                run = Flying(tmp_path / name, "--set", f"view.port={port}")
                try:
                    await status(client, connected=True, state="running")
                finally:
                    run.kill()
                await status(client, connected=False)

    done(supervise())


def test_agent_stays_with_the_newest_session(tmp_path: Path) -> None:
    wire, port, token = free_port(), free_port(), tmp_path / "token"
    fields = ("--model", "random", "--host", "inprocess", "--bind", f"tcp://127.0.0.1:{wire}")
    fields += ("--http", f"127.0.0.1:{port}", "--out", str(tmp_path / "s"))
    fields += settings(f"serve.token_file={token}", "serve.require_token=true")
    server = Program(["-m", "rtcontrol", "serve", *fields], tmp_path / "log")

    async def supervise(robot: Robot) -> None:
        async with agent(f"http://127.0.0.1:{port}") as stranger:
            assert "token" in (await status(stranger, connected=False))["why"]
        async with agent(f"http://127.0.0.1:{port}", "--set", f"mcp.token_file={token}", "--instruct") as client:
            assert (await status(client, connected=True, state="running"))["session"] == "session-0001"
            assert "active session-0001: 'slowly'" in await called(client, "instruct", text="slowly")
            until(lambda: robot.instruction == "slowly")
            with Robot.connect(f"tcp://127.0.0.1:{wire}", tools=[GO], safe_call="go", **paced) as other:
                other.observe(text="free 1")
                until(lambda: other.call().status == "fresh")
                await called(client, "pause")
                assert (await status(client, state="paused"))["session"] == "session-0001"
                until(lambda: robot.call().status == "safe")
                assert other.call().status == "fresh"
                await called(client, "stop")
                until(lambda: not robot.connected)
                gone = await status(client, connected=False)  # and it does not turn to the other one by itself
                assert gone["session"] == "session-0001"
                assert "no connection" in await refused(client, "instruct", text="fast")
                assert other.call().status == "fresh"

    paced = {"instruction": "go on", "hz": 20, "ttl_ms": 0, "max_age_ms": 1e6}  # one observation is enough
    try:
        server.says(f"listening on http://127.0.0.1:{port}")
        with Robot.connect(f"tcp://127.0.0.1:{wire}", tools=[GO], safe_call="go", **paced) as robot:
            robot.observe(text="free 3")
            done(supervise(robot))
    finally:
        server.kill()


# Peers' servers went on for ever behind a closed stdin (modelcontextprotocol/typescript-sdk#2002), broke the protocol
# with lines of their own on stdout (base/base-builder-mcp#15), and answered pages of other sites (python-sdk#861).


def test_server_ends_with_stdin_and_prints_messages_only(flying: Flying) -> None:
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
    hello["params"] = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
    single = subprocess.Popen(
        [sys.executable, *command(flying.url)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert single.stdin is not None and single.stdout is not None
    single.stdin.write(json.dumps(hello) + "\n")
    single.stdin.flush()
    first = json.loads(single.stdout.readline())
    assert first["result"]["serverInfo"]["name"] == "rtcontrol"
    rest, wrong = single.communicate(timeout=30)
    assert single.returncode == 0
    assert [json.loads(line)["jsonrpc"] for line in rest.splitlines()] == ["2.0"] * len(rest.splitlines())
    assert "Traceback" not in wrong
    assert flying.popen.poll() is None  # the run flies on


# Pictures of a world behind a wire.


LARGE = enlarged(jpeg(200, 120), MAX_PICTURE_BYTES)
SMALL = encode_png(np.full((30, 40, 3), 9, np.uint8))


async def _until_read(looking: Client, file: bytes) -> Any:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(MCPError):
                content = (await looking.read_resource("rtcontrol://picture")).contents[0]
                if content.blob == base64.b64encode(file).decode():  # type: ignore[union-attr]
                    return content
            await asyncio.sleep(0.05)


async def watch_pictures(client: Robot, page: str) -> None:
    async with agent(page) as looking:
        assert (await status(looking, connected=True, phase="running"))["picture_age_s"] is None
        with pytest.raises(MCPError, match="There is no picture"):
            await looking.read_resource("rtcontrol://picture")
        for file, kind in ((LARGE, "image/jpeg"), (SMALL, "image/png")):
            assert client.send_picture(file)
            assert (await _until_read(looking, file)).mime_type == kind
        assert (await status(looking, connected=True))["picture_age_s"] is not None


def test_runs_picture_is_shown_on_page_and_mcp(tmp_path: Path) -> None:
    endpoint, port, over = f"tcp://127.0.0.1:{free_port()}", str(free_port()), threading.Event()
    command = ("-m", "rtcontrol", "run", "--env", "remote", "--view", "--no-live", "--model", "random")
    command += ("--host", "inprocess", "--out", str(tmp_path / "run"))
    command += settings(f"serve.bind={endpoint}", f"view.port={port}")
    program = Program(command, tmp_path / "log")
    try:
        program.says("waiting for a client")
        with Robot.connect(endpoint, **OWN, hz=16) as client:

            def observe() -> None:
                while not over.wait(0.05):
                    client.observe(text="x")

            thread = threading.Thread(target=observe)
            thread.start()
            try:
                done(watch_pictures(client, f"http://127.0.0.1:{port}"))
                client.send_picture(LARGE)
                with connect(f"ws://127.0.0.1:{port}/view/ws", compression=None, max_size=1 << 22) as view:
                    until(lambda: view.recv(timeout=30) == LARGE)
            finally:
                over.set()
                thread.join()
    finally:
        program.kill()
