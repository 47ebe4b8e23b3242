"""`python -m tests.bridges.rig.ages [--seconds 20] [--rounds 3]`: from an observation's stamp to its call carried out,
of each client at 16 Hz, that looks on a grid of its own or just in time for the server's ticks, in turns.

One server decides for all, one after the other (the bundled model for any tools). Prints a Markdown table and, as JSON,
each round's p50. A client whose part is not installed here is left out, and said so.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from rtcontrol_client import Client, Standing
from tests.bridges.cpp.build import ABSENT, INCLUDE
from tests.bridges.rig.base import conditions
from tests.bridges.unity import mono
from tests.bridges.web_ends import Served
from tests.helpers.processes import until
from tests.rtcontrol.gateway.chromium import BINARY, Chromium

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[3] / "bridges" / "javascript" / "src" / "index.js"
SETTLES = 32  # the first calls are not counted
TOOLS = [
    {
        "name": "drive",
        "description": "Drive at a speed.",
        "parameters": {
            "type": "object",
            "properties": {"speed": {"type": "integer", "minimum": -20, "maximum": 20, "multipleOf": 10}},
            "required": ["speed"],
        },
    },
    {"name": "stop", "description": "Stand still.", "parameters": {"type": "object", "properties": {}}},
]
Flight = Callable[[bool, float], list[float]]


class Ages:
    """The clients that can be had here, by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        pages = folder / "pages"
        pages.mkdir()
        for name in ("age.html", "flight.mjs"):
            shutil.copy(HERE / name, pages)
        self.server = Served(folder, "--static", str(pages), "--model", "base", "--hz", "16")
        self.server.start()
        until(lambda: self.server.logs().count("listening on") == 2, "the server did not start", 120)
        said = [line.rpartition(" ")[2] for line in self.server.logs().splitlines() if "listening on" in line]
        self._zmq = next(at for at in said if at.startswith("tcp"))
        self._http = next(at for at in said if at.startswith("http")).rstrip("/")
        self._web = f"ws://{urlsplit(self._http).netloc}/ws"

    def clients(self) -> dict[str, Flight | str]:
        """What flies each one; or why it cannot be had."""
        node = shutil.which("node")
        return {
            "Python": self._python,
            "C++": self._cpp if not ABSENT else f"{', '.join(ABSENT)} missing",
            "Unity's core under Mono, 15 ms frames, carried out in one": mono.REASON if mono.MISSING else self._unity,
            "JavaScript in Node": self._node if node else "node missing",
            "JavaScript in Chromium": self._page if BINARY else "chromium missing",
        }

    def _python(self, timed: bool, seconds: float) -> list[float]:
        ages: list[float] = []

        def on_call(standing: Standing) -> None:
            if standing.age_ms is not None:
                ages.append(standing.age_ms)

        def look() -> str:
            return "left 40 right 10"

        options = {"tools": TOOLS, "instruction": "Follow the road.", "safe_call": "stop", "hz": 16, "on_call": on_call}
        with Client.connect(self._zmq, **options, **({"look": look} if timed else {})) as client:
            if not timed:  # the server's ticks begin with the first look: at which phase of them, is chance
                client.observe(look())
                time.sleep(random.uniform(0.0, 1 / 16))
            end_s = next_s = time.monotonic()
            end_s += seconds
            while (now_s := time.monotonic()) < end_s:
                if not timed:
                    client.observe(look())
                next_s += 1 / 16
                time.sleep(max(0.0, next_s - now_s))
        return ages

    def _cpp(self, timed: bool, seconds: float) -> list[float]:
        exe = self._folder / "age"
        if not exe.exists():
            flags = ["-O2", "-std=c++17", f"-I{INCLUDE}", str(HERE / "age.cpp"), "-lzmq", "-pthread"]
            subprocess.run(["g++", *flags, "-o", str(exe)], check=True)
        return self._told([str(exe), self._zmq, str(int(timed)), str(seconds)])

    def _node(self, timed: bool, seconds: float) -> list[float]:
        if not (self._folder / "node_modules").exists():
            subprocess.run(["npm", "install", "--silent", "ws@8.18.3"], cwd=self._folder, check=True)
        return self._told(["node", str(HERE / "age.mjs"), str(SOURCE), self._web, str(int(timed)), str(seconds)])

    def _told(self, command: list[str]) -> list[float]:
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, check=True)
        found: list[float] = json.loads(done.stdout)
        return found

    def _page(self, timed: bool, seconds: float) -> list[float]:
        profile = Path(tempfile.mkdtemp(dir=self._folder))
        with Chromium(profile) as page:
            page.open(f"{self._http}/static/age.html?timed={int(timed)}")
            page.until("window.rtcontrol?.client.state === 'live'")
            time.sleep(seconds)
            found: list[float] = page.value("window.rtcontrol.ages")
        return found

    def _unity(self, timed: bool, seconds: float) -> list[float]:
        exe = self._folder / "driver.exe"
        if not exe.exists():
            mono.compile_cs(exe, [*mono.core_sources(), *(mono.HERE / "driver").glob("*.cs")])
        given = ["--endpoint", self._zmq, "--hz", "16", *(["--timed", "1"] if timed else [])]
        driver = mono.Driver(exe, "run", *given, "--seconds", str(seconds))
        driver.until(lambda event: event["event"] == "closed", "over", seconds + 60)
        return [event["age_ms"] for event in driver.events if event.get("event") == "call"]


def quantiles(ages: list[float]) -> tuple[float, float]:
    """p50 and p99."""
    found = sorted(ages)
    return found[len(found) // 2], found[min(len(found) - 1, int(0.99 * len(found)))]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bridges.rig.ages", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each flight")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="clients whose name has this word")
    given = parser.parse_args()
    found: dict[str, dict[bool, list[float]]] = {}
    rounds: dict[str, dict[bool, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        rig = Ages(Path(folder))
        try:
            for _ in range(given.rounds):
                for name, fly in rig.clients().items():
                    if given.only not in name:
                        continue
                    if isinstance(fly, str):
                        print(f"{name}: {fly}", file=sys.stderr)
                        continue
                    for timed in (False, True):
                        ages = fly(timed, given.seconds)[SETTLES:]
                        found.setdefault(name, {False: [], True: []})[timed] += ages
                        rounds.setdefault(name, {False: [], True: []})[timed].append(statistics.median(ages))
        finally:
            rig.server.stop()
    print("| client | grid of its own: p50, p99 ms | just in time: p50, p99 ms | calls |\n|---|---|---|---|")
    for name, by in found.items():
        own, timed = (", ".join(f"{ms:.1f}" for ms in quantiles(by[how])) for how in (False, True))
        print(f"| {name} | {own} | {timed} | {len(by[False])}, {len(by[True])} |")
    each = {name: {"own": by[False], "timed": by[True]} for name, by in rounds.items()}
    print(json.dumps({"p50_of_each_round": each, **conditions(seconds=given.seconds)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
