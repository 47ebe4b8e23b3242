"""`rtcontrol bench crowd`: a crowd by one decoder, the door without a decoder, and a batch beside one alone."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rtcontrol.bench.processes import cpu_s
from rtcontrol.bench.situations import Situation, situations
from rtcontrol.bench.wire import Servers, dealer, free_port, pong, wait_for
from rtcontrol.models.crowd import CharacterPrompt, CrowdDecoder
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.histogram import Series
from rtcontrol_client.wire import PROTOCOL, decode_msgpack, encode_msgpack
from rtcontrol_client.wire.crowd import CallMany, CrowdWish, Join, Member, MemberLook, ObserveMany, in_messages
from rtcontrol_client.wire.messages import Bye, ErrorMessage, Hello, Message, Ping, Program, Welcome

SIZES = (1, 8, 32, 64)
STRIDE = 7  # situations between one character's and the next one's
WARM_S = 3.0
END_S = 20.0


class CrowdLoad:
    """One raw peer with a crowd: all see something `looks_hz` times a second, in turns of what there is to be seen."""

    def __init__(
        self,
        endpoint: str,
        members: int,
        hz: float,
        asked: Sequence[Situation],
        every_tick: bool,
        agent: str = "lander",
    ) -> None:
        self.socket = dealer(endpoint)
        self._asked, self._ids = asked, [f"m{i:04d}" for i in range(members)]
        self._seq = 0
        self.token = ""
        self.bytes = 0  # of all messages both ways
        self.status: Counter[str] = Counter()
        self.causes: Counter[str] = Counter()
        self.age_ms = Series()
        hello = {"agent": agent, "hz": hz, "crowd": CrowdWish(members=members), "client": Program(name="bench")}
        self._send(Hello(protocol=list(PROTOCOL), t_client_ns=time.monotonic_ns(), **hello))  # type: ignore[arg-type]
        self._take_until(lambda: bool(self.token), 120.0)
        parts = [Member(id=name, every_tick=every_tick, instruction=self._of(i)[0]) for i, name in enumerate(self._ids)]
        for some in in_messages(parts):
            self._send(Join(session=self.token, members=some))

    def run(self, seconds: float, looks_hz: float, step: Callable[[float], None] = lambda s: None) -> float:
        """Observe and count for so long; gives how long it was."""
        self.status.clear()
        self.causes.clear()
        self.age_ms, self.bytes = Series(), 0
        began = told = time.monotonic()
        while (now := time.monotonic()) - began < seconds:
            self._look()
            self._take_until(lambda: False, max(0.0, now + 1 / looks_hz - time.monotonic()))
            if now - told > 1.0:
                step(now - told)
                told = now
        return time.monotonic() - began

    def bye(self) -> None:
        """The session is over, and its report written, when this returns, or after a while."""
        self._send(Bye(session=self.token))
        self._take_until(lambda: self.token == "", 1.0)
        self.socket.close(200)

    def _of(self, i: int) -> tuple[str, str]:
        one = self._asked[(STRIDE * i + self._seq) % len(self._asked)]
        return one.instruction, one.observation

    def _look(self) -> None:
        self._seq += 1
        now = time.monotonic_ns()
        looks = [MemberLook(id=name, seq=self._seq, t_ns=now, text=self._of(i)[1]) for i, name in enumerate(self._ids)]
        for some in in_messages(looks):
            self._send(ObserveMany(session=self.token, looks=some))

    def _take_until(self, done: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not done() and (left := end - time.monotonic()) > 0:
            if self.socket.poll(max(1, int(1e3 * left))):
                parts = self.socket.recv_multipart()
                self.bytes += sum(map(len, parts))
                self._take(decode_msgpack(parts))

    def _take(self, message: Message) -> None:
        if isinstance(message, CallMany):
            now = time.monotonic_ns()
            for call in message.calls:
                self.status[call.status] += 1
                if call.cause is not None:
                    self.causes[call.cause] += 1
                elif call.t_obs_ns is not None:
                    self.age_ms.add((now - call.t_obs_ns) / 1e6)
        elif isinstance(message, Welcome):
            if message.crowd is None:
                raise UserError("The server knows no crowds.", "Run the bench and the server of one version.")
            self.token = message.session
        elif isinstance(message, Ping):
            self._send(pong(message))
        elif isinstance(message, ErrorMessage):
            raise UserError(f"The server refused something: {message.message}", message.remedy)
        elif isinstance(message, Bye):
            self.token = ""

    def _send(self, message: Message) -> None:
        parts = encode_msgpack(message)
        self.bytes += sum(map(len, parts))
        self.socket.send_multipart(parts)


def serve(
    members: int,
    hz: float,
    seconds: float,
    model: str,
    looks_hz: float,
    every_tick: bool,
    step: Callable[[float], None] = lambda s: None,
) -> dict[str, Any]:
    """A server of its own, a crowd of it, and what its report says; `cpu_s` are the server's own process's."""
    port = free_port()
    endpoint = f"tcp://127.0.0.1:{port}"
    with TemporaryDirectory() as out, Servers() as servers:
        servers.start(["-m", "rtcontrol", "serve", "--model", model, "--bind", endpoint, "--out", out])
        wait_for(port, servers)
        load = CrowdLoad(endpoint, members, hz, situations("lander", 400), every_tick)
        load.run(WARM_S, looks_hz)
        before, busy = cpu_s(servers.pid), os.getloadavg()[0]
        took = load.run(seconds, looks_hz, step)
        spent_s = cpu_s(servers.pid) - before
        servers.check()
        calls = sum(load.status.values())
        counted = {"status": dict(load.status), "causes": dict(load.causes), "look_to_call_ms": load.age_ms.summary()}
        load.bye()
        report = _report(Path(out))
    return {
        "members": members,
        "hz": hz,
        "seconds": round(took, 3),
        "model": model,
        "machine_load": busy,
        "calls": calls,
        "calls_a_second": round(calls / took, 1),
        "server_cpu_s": round(spent_s, 3),
        "calls_a_cpu_second": round(calls / spent_s, 1) if spent_s else None,
        **counted,
        "report": {
            name: report.get(name)
            for name in ("releases", "ticks", "on_time", "misses", "skipped_releases", "miss_rate", "misses_by_cause")
        }
        | {name: report.get(name) for name in ("misses_by_subcause", "latency_ms", "decide_ms", "held", "wire")},
    }


def _report(out: Path) -> dict[str, Any]:
    """The session's, once it is written."""
    end = time.monotonic() + END_S
    while time.monotonic() < end:
        for path in out.glob("session-*/report.json"):
            found: dict[str, Any] = json.loads(path.read_text("utf-8"))
            return found
        time.sleep(0.05)
    return {}


def batches(
    model: str,
    rounds: int,
    sizes: Sequence[int] = SIZES,
    agent: str = "lander",
    threads: int | None = None,
    step: Callable[[], None] = lambda: None,
    again: bool = False,
) -> dict[str, Any]:
    """Milliseconds of a batch by its size, by the clock and of this thread's own, all sizes taking turns; with `again`
    each right after one of its own size that is not counted: else a small one finds the caches of a large one."""
    from rtcontrol.bench.timing import Stopwatch, like
    from rtcontrol.models.decider import DeciderSpec
    from rtcontrol.run import assembly

    asked = situations(agent, 400)
    decoder = CrowdDecoder(DeciderSpec(model, tuple(assembly.agent(agent).tools.openai()), threads=threads))
    runner: Any = decoder.lone.runner
    watch = Stopwatch(runner.model.device)
    wall, cpu = {n: Series() for n in sizes}, {n: Series() for n in sizes}
    every: dict[int, list[float]] = {n: [] for n in sizes}
    with like(runner) as used:
        for turn in range(rounds + 2):
            for n, counted in ((n, counted) for n in sizes for counted in ((False, True) if again else (True,))):
                first = 2 * turn + counted if again else turn
                looks = [asked[(STRIDE * i + first) % len(asked)] for i in range(n)]
                situation = [CharacterPrompt(f"{n}/{i}", s.observation, s.instruction) for i, s in enumerate(looks)]
                found, took = watch.time(partial(decoder.decide, situation))
                for one in found:
                    if isinstance(one, Exception):
                        raise one
                if turn >= 2 and counted:
                    wall[n].add(took.wall_ms)
                    cpu[n].add(took.cpu_ms)
                    every[n].append(took.cpu_ms)
            step()
    shown = {str(n): {"wall_ms": wall[n].summary(), "cpu_ms": cpu[n].summary()} for n in sizes}
    most = max(sizes)
    ratio = {
        way: round(many[most].percentile(50) / many[1].percentile(50), 2)
        for way, many in (("wall", wall), ("cpu", cpu))
    }
    figures = {"sizes": shown, "largest": most, "over_one_alone": ratio, "rounds": rounds, "threads": used}
    exact = {str(n): round(median(took), 4) for n, took in every.items()}  # a summary's are those of its bins
    return {**figures, "together": runner.caps.batch, "median_cpu_ms": exact}
