"""Servers under load, for the costs of their parts: what door, decoder and Ray took, and what came over the wire."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from tempfile import TemporaryDirectory
from typing import Any

from rtcontrol.bench.crowd import CrowdLoad
from rtcontrol.bench.load import LoadClient, drive
from rtcontrol.bench.processes import ServerTree, tree
from rtcontrol.bench.situations import Situation, situations
from rtcontrol.bench.wire import START_S, Servers, free_port, wait_for
from rtcontrol.models.errors import UserError

STRIDE = 7  # situations between one client's and the next one's
COMING_S, SETTLE_S, WELCOME_S = 1.0, 1.0, 60.0
# A process that has more of a core than the first shows its limit, and not its cost; so does a server of whose calls
# fewer than the second are in time.
FULL, IN_TIME = 0.9, 0.9


@dataclass(frozen=True)
class ServedLoad:
    """So many `sessions`, or `characters` of one crowd, at a rate. `check`: nothing is fitted to it."""

    kind: str
    count: int
    hz: float
    check: bool = False

    @property
    def name(self) -> str:
        return f"{self.count} {self.kind} at {self.hz:g} Hz"

    @property
    def crowd(self) -> bool:
        return self.kind == "characters"


LOADS = (
    ServedLoad("sessions", 6, 5.0),
    ServedLoad("sessions", 12, 8.0),
    ServedLoad("sessions", 20, 9.0),
    ServedLoad("sessions", 9, 9.0, check=True),
    ServedLoad("sessions", 24, 5.0, check=True),
    ServedLoad("characters", 16, 5.0),
    ServedLoad("characters", 48, 2.0),
    ServedLoad("characters", 24, 8.0),
    ServedLoad("characters", 90, 3.0),
    ServedLoad("characters", 40, 5.0, check=True),
    ServedLoad("characters", 100, 2.5, check=True),
)


def served(
    model: str, agent: str, seconds: float, step: Callable[[float], None], loads: Sequence[ServedLoad] = LOADS
) -> list[dict[str, Any]]:
    """Each load for so many seconds, one after the other and once more in the opposite order (a virtual machine gets
    faster and slower meanwhile), on one server with one decoder of one thread: what each part took of a core, ticks and
    bytes a second, MiB. UserError where the server does not serve them."""
    port, asked = free_port(), situations(agent, 400)
    endpoint, found = f"tcp://127.0.0.1:{port}", dict[ServedLoad, dict[str, Any]]()
    with TemporaryDirectory() as out, Servers() as servers:
        line = ["serve", "--model", model, "--threads", "1", "--bind", endpoint, "--out", out, "--busy-max", "100"]
        servers.start(["-m", "rtcontrol", *line])
        wait_for(port, servers)
        for load in (*loads, *reversed(loads)):
            try:
                run = (_crowd if load.crowd else _sessions)(load, endpoint, agent, asked, seconds, servers)
            except UserError as error:
                what = f"{load.name} were not served to the end ({error.what.rstrip('.')})."
                raise UserError(what, "Measure again on a machine that does nothing else meanwhile.") from error
            found[load] = _mean(found[load], run) if load in found else run
            step(seconds)
    return [{**asdict(load), **run} for load, run in found.items()]


def _mean(first: dict[str, Any], again: dict[str, Any]) -> dict[str, Any]:
    """Of two runs of a load; memory is that of the first: what a process has had once it keeps."""
    between = {name: round((first[name] + again[name]) / 2, 3) for name in ("ticks_per_s", "bytes_per_s", "in_time")}
    busy = {part: round((one + again["busy"][part]) / 2, 4) for part, one in first["busy"].items()}
    return {**first, **between, "busy": busy, "full": first["full"] or again["full"]}


def _sessions(
    load: ServedLoad, endpoint: str, agent: str, asked: Sequence[Situation], seconds: float, servers: Servers
) -> dict[str, Any]:
    texts, clients, instants = [one.observation for one in asked], list[LoadClient](), random.Random(load.name)
    for number in range(load.count):
        start = STRIDE * number % len(texts)
        clients.append(LoadClient(endpoint, load.hz, agent, [*texts[start:], *texts[:start]]))
        # Robots know nothing of one another: all at once they would be decided together for ever.
        drive(clients, lambda: False, instants.uniform(0.0, 2 * COMING_S / load.count), lambda s: None)
    drive(clients, lambda: all(client.ready for client in clients), WELCOME_S, lambda s: servers.check())
    if not all(client.ready for client in clients):
        raise UserError(f"Not all of {load.name} were welcomed in {WELCOME_S:g} s.", "Measure on a quieter machine.")
    # Their decoders are still being built, and warmed up.
    drive(clients, lambda: all(client.status["fresh"] for client in clients), WELCOME_S, lambda s: servers.check())
    drive(clients, lambda: False, SETTLE_S, lambda s: None)
    for client in clients:
        client.forget()
    watch = ServedWatch(servers.pid)
    drive(clients, lambda: False, seconds, lambda s: servers.check())
    ticks, size = sum(len(client.ticks) for client in clients), sum(client.bytes for client in clients)
    figures = watch.figures(load, ticks, sum(client.status["fresh"] for client in clients), size)
    for client in clients:
        client.bye()
    return figures


def _crowd(
    load: ServedLoad, endpoint: str, agent: str, asked: Sequence[Situation], seconds: float, servers: Servers
) -> dict[str, Any]:
    crowd = CrowdLoad(endpoint, load.count, load.hz, asked, every_tick=True, agent=agent)
    end_s = time.monotonic() + WELCOME_S
    crowd.run(SETTLE_S, 2 * load.hz)
    while crowd.status["fresh"] < load.count / 2 and time.monotonic() < end_s:
        crowd.run(SETTLE_S, 2 * load.hz)
    watch = ServedWatch(servers.pid)
    took_s = crowd.run(seconds, 2 * load.hz)
    servers.check()
    # What is told beside a decision, such as the safe call after a miss, is none.
    calls = min(sum(crowd.status.values()), round(load.count * load.hz * took_s))
    figures = watch.figures(load, calls, crowd.status["fresh"], crowd.bytes)
    crowd.bye()
    return figures


class ServedWatch:
    """What a server's parts take from now on."""

    def __init__(self, server: int) -> None:
        end_s, found = time.monotonic() + START_S, tree(server)
        while found is None and time.monotonic() < end_s:
            time.sleep(0.1)
            found = tree(server)
        if found is None:
            raise UserError("The server has no decoder of its own.", "Unset RAY_ADDRESS, and measure again.")
        self._tree: ServerTree = found
        self._before, self._began_s = found.cpu_s(), time.monotonic()

    def figures(self, load: ServedLoad, ticks: int, fresh: int, size: int) -> dict[str, Any]:
        """Each part's share of a core; MiB; ticks and bytes a second; `in_time`: the share of the ticks that were due
        whose decisions came; `full` where that, or a share of a core, is beyond what tells of a cost."""
        took_s = time.monotonic() - self._began_s
        busy = {part: (now - self._before[part]) / took_s for part, now in self._tree.cpu_s().items()}
        mib = {part: round(one, 1) for part, one in self._tree.rss_mib().items()}
        rates = {"ticks_per_s": round(ticks / took_s, 3), "bytes_per_s": round(size / took_s)}
        in_time = fresh / (load.count * load.hz * took_s)
        full = max(busy["server"], busy["decoder"]) > FULL or in_time < IN_TIME
        shown = {part: round(one, 4) for part, one in busy.items()}
        return {"busy": shown, "mib": mib, **rates, "in_time": round(in_time, 3), "full": full}
