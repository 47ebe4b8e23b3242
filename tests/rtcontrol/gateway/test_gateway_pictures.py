"""Pictures of a world behind a wire, for who looks on: a run's page, and the MCP resource."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import connect

from rtcontrol.envs.pictures import png
from rtcontrol_client import Client
from rtcontrol_client.wire.pictures import MAX_PICTURE_BYTES
from tests.bridges.client.worlds import OWN
from tests.bridges.wire.test_picture_files import enlarged, jpeg
from tests.helpers.processes import Program, free_port, until

pytest.importorskip("mcp", reason="the mcp extra is not installed")
import mcp
from mcp.shared.exceptions import MCPError
from test_mcp_server import agent, done, status

LARGE = enlarged(jpeg(200, 120), MAX_PICTURE_BYTES)
SMALL = png(np.full((30, 40, 3), 9, np.uint8))


async def _until_read(looking: mcp.Client, file: bytes) -> Any:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(MCPError):
                content = (await looking.read_resource("rtcontrol://picture")).contents[0]
                if content.blob == base64.b64encode(file).decode():  # type: ignore[union-attr]
                    return content
            await asyncio.sleep(0.05)


async def supervise(client: Client, page: str) -> None:
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
    command = (
        "-m",
        "rtcontrol",
        "run",
        "--env",
        "remote",
        "--set",
        f"serve.bind={endpoint}",
        "--view",
        "--set",
        f"view.port={port}",
    )
    command += ("--no-live", "--model", "random", "--host", "inprocess", "--out", str(tmp_path / "run"))
    program = Program(command, tmp_path / "log")
    try:
        program.says("waiting for a client")
        with Client.connect(endpoint, **OWN, hz=16) as client:

            def observe() -> None:
                while not over.wait(0.05):
                    client.observe(text="x")

            thread = threading.Thread(target=observe)
            thread.start()
            try:
                done(supervise(client, f"http://127.0.0.1:{port}"))
                client.send_picture(LARGE)
                with connect(f"ws://127.0.0.1:{port}/view/ws", compression=None, max_size=1 << 22) as view:
                    until(lambda: view.recv(timeout=30) == LARGE)
            finally:
                over.set()
                thread.join()
    finally:
        program.kill()
