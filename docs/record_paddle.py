"""Takes docs/paddle.png: a match in the page of `rtcontrol serve`, and prints the latencies that the page measured.

Run from the repository's root: `PYTHONPATH=. python docs/record_paddle.py [--model M] [--seconds S] [--out FILE]`
(needs Chromium).
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.rtcontrol.gateway.chromium import Chromium

TOLD = "aim high"
TOLD_S = 3.0  # before the picture
START_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="paddle")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("paddle.png"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"http://127.0.0.1:{_free_port()}/"
        options = [
            "--agent",
            "paddle",
            "--model",
            given.model,
            "--bind",
            f"ipc://{folder}/wire",
            "--out",
            f"{folder}/out",
        ]
        command = [sys.executable, "-m", "rtcontrol", "serve", *options, "--http", url[7:-1]]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            _wait_for(url, server)
            with Chromium(Path(folder) / "profile", "--hide-scrollbars") as page:
                _play(page, url, given.seconds, given.out)
        finally:
            server.terminate()
            server.wait(60)


def _play(page: Chromium, url: str, seconds: float, out: Path) -> None:
    page.open(url, 1280, 810)
    page.until("rtcontrol.counts.ticks > 30", START_S)
    # What was slow while everything was new is no measure of it.
    page.value("rtcontrol.counts.ticks = rtcontrol.counts.misses = 0; rtcontrol.counts.causes.clear()")
    page.value("rtcontrol.chart.calls.length = 0")
    time.sleep(max(0.0, seconds - TOLD_S))
    page.value(f"[...document.querySelectorAll('#chips button')].find(b => b.textContent === {TOLD!r}).click()")
    time.sleep(TOLD_S)
    page.until("rtcontrol.world.own_hits > 1 && rtcontrol.world.other_hits > 1", 60)
    page.until("rtcontrol.world.ball_vx > 0 && rtcontrol.world.ball_x > 55 && rtcontrol.world.own_v !== 0", 60)
    page.shoot(out)
    told = "({...rtcontrol.chart.figures(), ...rtcontrol.counts, causes: Object.fromEntries(rtcontrol.counts.causes)})"
    print(json.dumps(page.value(told)))
    keys = ("own_score", "other_score", "own_hits", "other_hits")
    print(json.dumps(page.value(f"Object.fromEntries({list(keys)}.map(k => [k, rtcontrol.world[k]]))")))
    if page.errors:
        print(f"The page's console: {page.errors}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up and server.poll() is None:
        try:
            httpx.get(f"{url}health")
            return
        except httpx.TransportError:
            time.sleep(0.2)
    raise SystemExit("The server did not start.")


if __name__ == "__main__":
    main()
