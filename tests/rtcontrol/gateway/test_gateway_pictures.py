"""Pictures of a world behind a wire, for who looks on: a server's page, a run's, and the MCP resource."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import httpx
import numpy as np
import pytest
from chromium import Chromium
from websockets.sync.client import ClientConnection, connect

from rtcontrol.envs.pictures import png
from rtcontrol_client import Client
from rtcontrol_client.wire.pictures import MAX_PICTURE_BYTES
from tests.bridges.client.worlds import OWN, Process
from tests.bridges.wire.test_picture_files import enlarged, jpeg
from tests.helpers.processes import Program, free_port, until

pytest.importorskip("mcp", reason="the mcp extra is not installed")
import mcp
from mcp.shared.exceptions import MCPError
from test_mcp_server import agent, done, status

in_chromium = pytest.mark.skipif(chromium.BINARY is None, reason="there is no Chromium to show the page")
LARGE = enlarged(jpeg(200, 120), MAX_PICTURE_BYTES)
SMALL = png(np.full((30, 40, 3), 9, np.uint8))


@contextlib.contextmanager
def observing(client: Client) -> Iterator[Client]:
    """It observes, from a thread of its own, for as long as it is used."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            client.observe(text="x")

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield client
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, str]]:
    """A server, and its page's address."""
    port = free_port()
    server = Process(tmp_path_factory.mktemp("served"), free_port(), "--http", f"127.0.0.1:{port}")
    server.start()
    yield server, f"http://127.0.0.1:{port}"
    server.kill()


@pytest.fixture
def flown(served: tuple[Process, str]) -> Iterator[Client]:
    with Client.connect(served[0].endpoint, **OWN, hz=20, name="camera") as client, observing(client):
        yield client


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, str, str]]:
    """`rtcontrol run --env remote`: its endpoint, and its page's address."""
    folder, endpoint, port = tmp_path_factory.mktemp("run"), f"tcp://127.0.0.1:{free_port()}", str(free_port())
    command = ("-m", "rtcontrol", "run", "--env", "remote", "--bind", endpoint, "--view", "--view-port", port)
    command += ("--no-live", "--model", "random", "--host", "inprocess", "--out", str(folder / "run"))
    program = Program(command, folder / "log")
    program.says("waiting for a client")
    yield program, endpoint, f"http://127.0.0.1:{port}"
    program.kill()


def watching(url: str, session: str | None) -> Any:
    query = "" if session is None else f"?session={session}"
    return connect(f"{url.replace('http', 'ws', 1)}/view/ws{query}", compression=None, max_size=1 << 22)


def newest_session(page: str) -> str:
    """That of the client that came last."""
    found: list[Any] = []
    until(lambda: found.extend(httpx.get(f"{page}/view/sessions").json()) or found, "there is no session")
    return str(max(one["id"] for one in found))


def next_picture(view: ClientConnection) -> tuple[bytes, dict[str, Any]]:
    """The next picture, and the snapshot before it."""
    told: dict[str, Any] = {}
    end = time.monotonic() + 30
    while time.monotonic() < end:
        data = view.recv(timeout=30)
        if isinstance(data, bytes):
            return data, told
        told = json.loads(data)
    raise AssertionError("no picture came")


def test_a_runs_picture_is_shown_on_its_page_and_by_mcp_with_its_type(run: tuple[Program, str, str]) -> None:
    _, endpoint, page = run

    async def supervise(client: Client) -> None:
        async with agent(page) as looking:
            assert (await status(looking, connected=True, phase="running"))["picture_age_s"] is None
            with pytest.raises(MCPError, match="There is no picture"):
                await looking.read_resource("rtcontrol://picture")
            for file, kind in ((LARGE, "image/jpeg"), (SMALL, "image/png")):
                assert client.send_picture(file)
                content = await _until_read(looking, file)
                assert content.mime_type == kind
            seen = await status(looking, connected=True)
            assert seen["picture_age_s"] is not None

    with Client.connect(endpoint, **OWN, hz=16) as client, observing(client):
        done(supervise(client))
        client.send_picture(LARGE)
        with watching(page, None) as view:
            while next_picture(view)[0] != LARGE:
                pass


async def _until_read(looking: mcp.Client, file: bytes) -> Any:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(MCPError):
                content = (await looking.read_resource("rtcontrol://picture")).contents[0]
                if content.blob == base64.b64encode(file).decode():  # type: ignore[union-attr]
                    return content
            await asyncio.sleep(0.05)


@in_chromium
def test_the_page_tells_an_old_picture_and_shows_none_of_another_session(
    served: tuple[Process, str], flown: Client, tmp_path: Path
) -> None:
    url = served[1]
    with Chromium(tmp_path) as page:
        page.open(f"{url}/live.html?session={newest_session(url)}")
        page.until("rtcontrol.last")  # a picture is old after 3 s: the browser may take longer to start
        until(lambda: flown.send_picture(jpeg(200, 120)), "not in session")
        page.until("document.getElementById('picture').width === 200 && !document.getElementById('world').hidden")
        page.until("document.getElementById('picture-age').textContent === ''")
        flown.send_picture(SMALL, t_ns=time.monotonic_ns() - 50_000_000_000)
        page.until("document.getElementById('picture').width === 40")
        page.until("/^5[0-9] s old$/.test(document.getElementById('picture-age').textContent)")
        with Client.connect(served[0].endpoint, **OWN, hz=20, name="other") as other, observing(other):
            page.open(f"{url}/live.html?session={newest_session(url)}")
            page.until("rtcontrol.last?.env === 'other' && document.getElementById('world').hidden")
