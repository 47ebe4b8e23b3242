"""Plays SimpleTool's browser games by a model and prints each result as JSON; with --out also takes screenshots.

Run from the repository's root: `RTCONTROL_SIMPLETOOL_GAMES=DEMOS PYTHONPATH=. python docs/record_simpletool.py
[--model M] [--games N] [--out FOLDER]` (needs Chromium; DEMOS is the folder `demos` of SimpleTool's repository).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "rtcontrol" / "gateway"))
import simpletool_player as player
from chromium import Chromium

from tests.helpers.processes import free_port

START_S = 120.0
# What is played, and which game it is.
PLAYS: dict[str, tuple[str, Callable[..., dict[str, Any]], dict[str, Any]]] = {
    "pong": ("pong", player.pong, {}),
    "flappy-normal": ("flappy", player.flappy, {"level": "normal"}),
    "flappy-easy": ("flappy", player.flappy, {"level": "easy"}),
    "arena": ("arena", player.arena, {}),
    "arena-person": ("arena", player.arena, {"person": True}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="default: the bundled one that knows the tools")
    parser.add_argument("--games", type=int, default=10, help="of each kind")
    parser.add_argument("--only", nargs="*", choices=list(PLAYS), default=list(PLAYS))
    parser.add_argument("--out", type=Path, help="where the screenshots go: the first game of each kind that was won")
    given = parser.parse_args()
    if player.MISSING is not None:
        raise SystemExit(player.MISSING)
    url = f"http://127.0.0.1:{free_port()}/"
    with tempfile.TemporaryDirectory() as folder:
        options = ["--bind", f"ipc://{folder}/wire", "--out", f"{folder}/out", "--static", player.FOLDER]
        named = [] if given.model is None else ["--model", given.model]
        command = [sys.executable, "-m", "rtcontrol", "serve", *options, *named, "--http", url[7:-1]]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            _wait_for(url, server)
            with Chromium(Path(folder) / "profile", "--hide-scrollbars") as page:
                for name in given.only:
                    _play(page, url, name, given.games, given.out)
        finally:
            server.terminate()
            server.wait(60)


def _play(page: Chromium, url: str, name: str, games: int, out: Path | None) -> None:
    game, play, options = PLAYS[name]
    taken = out is None
    for _ in range(games):
        player.show(page, url, game)
        picture = None if taken or out is None else out / f"simpletool-{name}.png"
        result = play(page, picture=picture, **options)
        taken = taken or result.get("ai") == 5 or result.get("pipes") == 10 or result.get("winner") == "AI WINS"
        print(json.dumps({"play": name, **result}), flush=True)


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
