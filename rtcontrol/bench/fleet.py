"""`rtcontrol bench fleet`: decisions a second of two decoders beside one, by as many sessions, in turns."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rtcontrol.bench.processes import cpu_s
from rtcontrol.bench.situations import Situation, agent_of, situations
from rtcontrol.hosts.deciders import STSource
from rtcontrol.hosts.fleet import FleetPool
from rtcontrol.hosts.protocol import DecisionRequest, Host
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly

WAYS = ("one", "two")
SITUATIONS = 80
WARM_S = 0.5  # of each turn, not counted
WAIT_NS = 1_000_000_000


def compare(model: str | None, sessions: int, seconds: float, rounds: int, done: Callable[[], None]) -> dict[str, Any]:
    """Decisions a second, each session asking again as soon as it has its answer: all of them on one decoder, then half
    of them on each of two, in turns; `ratio` is of the medians. Without a model by random weights of 15 M parameters.
    UserError where a decider fails."""
    with TemporaryDirectory() as folder:
        if model is None:
            from rtcontrol.bench.shapes import eight_token_heads

            shaped = eight_token_heads(Path(folder) / "random", SITUATIONS)
            source = STSource(DeciderSpec(str(shaped.folder), tuple(shaped.tools)))
            found = _compare(source, shaped.asked, sessions, seconds, rounds, done)
        else:
            agent = agent_of(model)
            source = STSource(DeciderSpec(model, tuple(assembly.agent(agent).tools.openai())))
            found = _compare(source, situations(agent, SITUATIONS), sessions, seconds, rounds, done)
    return {"model": model or "random weights, 15 M", **found}


def _compare(
    source: STSource,
    asked: Sequence[Situation],
    sessions: int,
    seconds: float,
    rounds: int,
    done: Callable[[], None],
) -> dict[str, Any]:
    fleet = FleetPool(2 * sessions, 2)
    try:
        fleet.start()
        first, second = (member.decoder for member in fleet.members)
        hosts: dict[str, list[Host]] = {way: [] for way in WAYS}
        for way, number in ((way, number) for way in WAYS for number in range(sessions)):
            host = fleet.open(f"{way}-{number}", source)
            there = second if way == "two" and number % 2 else first
            if host.place != there:
                moving = fleet.move(host, there)
                if moving is None or (why := moving.result()):
                    raise UserError(f"A session cannot go to {there} ({'' if moving is None else why}).", "Try again.")
            hosts[way].append(host)
        pids = [int(member.process["pid"]) for member in fleet.members]
        rates: dict[str, list[float]] = {way: [] for way in WAYS}
        spent: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(rounds):
            for way in WAYS if turn % 2 == 0 else WAYS[::-1]:
                before = sum(map(cpu_s, pids))
                rate, count = _rate(hosts[way], asked, seconds)
                rates[way].append(round(rate, 2))
                spent[way].append(round(1e3 * (sum(map(cpu_s, pids)) - before) / count, 4))
                done()
    finally:
        fleet.close()
    medians = {way: median(rates[way]) for way in WAYS}
    return {
        "sessions": sessions,
        "seconds": seconds,
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "decisions_per_s": rates,
        "processor_ms": spent,
        "median": medians,
        "median_processor_ms": {way: median(spent[way]) for way in WAYS},
        "ratio": round(medians["two"] / medians["one"], 3),
    }


def _rate(hosts: Sequence[Host], asked: Sequence[Situation], seconds: float) -> tuple[float, int]:
    """A thread a session: answers a second after the warm-up, and all there were."""
    over, counting = threading.Event(), threading.Event()
    counts, every, errors = [0] * len(hosts), [0] * len(hosts), list[str]()

    def ask(number: int, host: Host) -> None:
        tick = 0
        while not over.is_set():
            one = asked[(7 * number + tick) % len(asked)]
            request = DecisionRequest(time.monotonic_ns() // 1000, 1, one.observation, one.instruction)
            host.submit(replace(request, within_ns=WAIT_NS))
            reply = None
            while reply is None and not over.is_set():
                reply = host.wait(50_000_000)
            if reply is not None and reply.error is not None:
                errors.append(reply.error)
                return
            tick += 1
            every[number] += reply is not None
            counts[number] += reply is not None and counting.is_set()

    threads = [threading.Thread(target=ask, args=pair, daemon=True) for pair in enumerate(hosts)]
    for thread in threads:
        thread.start()
    time.sleep(WARM_S)
    began = time.monotonic()
    counting.set()
    time.sleep(seconds)
    made, took = sum(counts), time.monotonic() - began
    over.set()
    for thread in threads:
        thread.join()
    if errors:
        raise UserError(f"A decision failed: {errors[0]}.", "Look at the model by hand, with `rtcontrol run`.")
    return made / took, max(sum(every), 1)
