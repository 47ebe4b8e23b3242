"""Decoder pools with real threads, a real Ray actor and real small checkpoints."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
import ray

from rtcontrol.hosts.base import DecisionReply, DecisionRequest, Host
from rtcontrol.hosts.deciders import NoopSource, STSource
from rtcontrol.hosts.pool import DecoderPool, InlinePool, Rota
from rtcontrol.hosts.pool_inprocess import InProcessPool
from rtcontrol.hosts.pool_ray import RayPool
from rtcontrol.models.call import Decision
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.errors import UserError
from tests.models.small import WORDS, build_checkpoint


def naming(name: str, build: str = "") -> Any:
    """A source whose deciders call the function `name`, made of local classes, which Ray carries by value; `build` is
    seconds to sleep, or "user" or "bug"."""

    from rtcontrol.models.call import Call, Decision
    from rtcontrol.models.errors import UserError

    class Naming:
        def build(self) -> Naming:
            import time

            if build == "user":
                raise UserError("No such checkpoint.", "Give another.")
            if build == "bug":
                raise ZeroDivisionError("oops")
            time.sleep(float(build or 0))
            return self

        def decide(self, request: DecisionRequest) -> Decision:
            import time

            if request.instruction == "fail":
                raise ValueError("cannot")
            if request.instruction.startswith("sleep"):
                time.sleep(float(request.instruction.split()[1]))
            return Decision(Call(name, {"at": request.observation}))

        def info(self) -> dict[str, Any]:
            return {"model": name}

    return Naming()


def request(tick: int, instruction: str = "go") -> DecisionRequest:
    return DecisionRequest(tick, 1, f"x {tick}", instruction, ("push(force=1)",))


def reply_of(host: Host, seconds: float = 10.0) -> DecisionReply:
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if (reply := host.wait(50_000_000)) is not None:
            return reply
    raise AssertionError("no reply")


def called(host: Host, tick: int, instruction: str = "go") -> str:
    host.submit(request(tick, instruction))
    reply = reply_of(host)
    assert (reply.tick, reply.error) == (tick, None)
    assert reply.decision is not None and reply.decision.call is not None
    return reply.decision.call.text()


def wait_until(true: Callable[[], bool], seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.005)


@pytest.fixture(scope="module")
def ray_pool() -> Iterator[RayPool]:
    pool = RayPool()
    assert pool.start()["pid"] != os.getpid()
    yield pool
    pool.close()


@pytest.fixture(params=["inprocess", "ray"])
def pool(request: pytest.FixtureRequest) -> Iterator[DecoderPool]:
    if request.param == "ray":
        yield request.getfixturevalue("ray_pool")
    else:
        made = InProcessPool()
        made.start()
        yield made
        made.close()


def test_each_session_has_its_own_decider(pool: DecoderPool) -> None:
    left, right = pool.open("a", naming("left")), pool.open("b", naming("right"))
    try:
        assert (left.start()["model"], right.start()["model"]) == ("left", "right")
        left.submit(request(7))
        right.submit(request(7))
        for host, name in ((right, "right"), (left, "left")):
            decision = reply_of(host).decision
            assert decision is not None and decision.call is not None
            assert decision.call.text() == f'{name}(at="x 7")'
    finally:
        left.close()
        right.close()


def test_an_error_costs_its_own_tick_only(pool: DecoderPool) -> None:
    host, other = pool.open("a", naming("left")), pool.open("b", naming("right"))
    host.submit(request(1, "fail"))
    assert reply_of(host).error == "ValueError: cannot"
    assert called(host, 2) == 'left(at="x 2")'
    assert called(other, 2) == 'right(at="x 2")'
    host.close()
    other.close()


def test_newest_request_wins_and_a_busy_session_delays_another_by_one_decision(pool: DecoderPool) -> None:
    busy, quiet = pool.open("a", naming("busy")), pool.open("b", naming("quiet"))
    busy.submit(request(1, "sleep 0.3"))
    time.sleep(0.1)
    busy.submit(request(2, "sleep 0.3"))
    quiet.submit(request(1))
    for tick in range(3, 6):
        busy.submit(request(tick, "sleep 0.3"))
    # The busy session began to wait first, with the newest of its requests; then it is the quiet one's turn.
    assert reply_of(busy).tick == 1
    assert reply_of(busy).tick == 5
    busy.submit(request(6, "sleep 1.0"))
    assert reply_of(quiet, 0.5).tick == 1
    assert reply_of(busy).tick == 6
    assert quiet.wait(0) is None
    busy.close()
    quiet.close()


def test_cancelled_before_its_turn_is_not_decided(pool: DecoderPool) -> None:
    busy, other = pool.open("a", naming("busy")), pool.open("b", naming("other"))
    busy.submit(request(1, "sleep 0.3"))
    time.sleep(0.1)
    other.submit(request(1, "sleep 5"))
    other.cancel(1)
    assert reply_of(busy).tick == 1
    assert called(other, 2) == 'other(at="x 2")'
    busy.close()
    other.close()


def test_rota_keeps_the_place_of_a_session_that_gives_requests_up() -> None:
    rota = Rota()
    rota.put("hasty", request(1))
    rota.put("patient", request(1))
    rota.cancel("hasty", 1)
    rota.put("hasty", request(2))
    taken = [rota.take(), rota.take(), rota.take()]
    assert [(t[0], t[1].tick) for t in taken if t] == [("hasty", 2), ("patient", 1)]
    rota.put("hasty", request(3))
    rota.put("patient", request(2))
    rota.cancel("hasty", 2)  # another's tick, or one long gone
    rota.remove("patient")
    taken = [rota.take(), rota.take()]
    assert [(t[0], t[1].tick) for t in taken if t] == [("hasty", 3)]


def test_opening_a_session_holds_up_nobody(pool: DecoderPool) -> None:
    host = pool.open("a", naming("left"))
    slow: list[Host] = []
    opener = threading.Thread(target=lambda: slow.append(pool.open("b", naming("slow", "1.5"))))
    opener.start()
    decided = 0
    while opener.is_alive():
        called(host, decided)
        decided += 1
    assert decided > 20
    assert called(slow[0], 1) == 'slow(at="x 1")'
    host.close()
    slow[0].close()


@pytest.mark.parametrize(("fault", "says"), [("user", "No such checkpoint"), ("bug", "oops")])
def test_a_decider_that_cannot_be_made_leaves_the_others_alone(pool: DecoderPool, fault: str, says: str) -> None:
    host = pool.open("a", naming("left"))
    with pytest.raises(UserError, match=says):
        pool.open("b", naming("right", fault))
    assert called(host, 1) == 'left(at="x 1")'
    host.close()


def test_a_closed_session_gets_no_reply_and_the_others_do(pool: DecoderPool) -> None:
    host, other = pool.open("a", naming("left")), pool.open("b", naming("right"))
    host.submit(request(1, "sleep 0.2"))
    host.close()
    host.close()
    assert not host.alive()
    assert called(other, 1) == 'right(at="x 1")'
    other.close()


def test_a_session_may_be_opened_again_under_its_name(pool: DecoderPool) -> None:
    first = pool.open("a", naming("left"))
    second = pool.open("a", naming("right"))
    first.close()
    assert called(second, 1) == 'right(at="x 1")'
    second.close()


def test_inline_decides_on_the_callers_thread() -> None:
    pool = InlinePool()
    pool.start()
    host = pool.open("a", NoopSource())
    assert host.start()["model"] == "noop"
    host.submit(request(3))
    reply = host.wait(0)
    assert reply is not None and reply.tick == 3 and reply.decision is not None and reply.decision.call is None
    began = time.monotonic()
    assert host.wait(20_000_000) is None
    assert time.monotonic() - began >= 0.02
    host.close()
    assert not host.alive()


@pytest.mark.parametrize("kind", [InlinePool, InProcessPool, RayPool])
def test_no_more_sessions_than_the_limit(kind: Any, ray_pool: RayPool) -> None:
    pool: DecoderPool = kind(limit=2)
    pool.start()
    hosts = [pool.open("a", naming("left")), pool.open("b", naming("right"))]
    with pytest.raises(UserError, match="2 open sessions"):
        pool.open("c", naming("third"))
    hosts[0].close()
    hosts[0].close()
    with pytest.raises(UserError, match="No such checkpoint"):
        pool.open("c", naming("third", "user"))
    hosts.append(pool.open("c", naming("third")))
    with pytest.raises(UserError, match="2 open sessions"):
        pool.open("d", naming("fourth"))
    # The server may end before its sessions' threads have seen it.
    pool.close()
    for host in hosts[1:]:
        assert not pool.alive() or kind is InlinePool
        host.submit(request(1))
        assert kind is InlinePool or host.wait(100_000_000) is None
        host.close()
    with pytest.raises(UserError, match=r"closed|open sessions"):
        pool.open("e", naming("fifth"))
        assert kind is InlinePool
        pool.open("f", naming("sixth"))
        pool.open("g", naming("seventh"))


def test_many_sessions_at_once_each_get_their_own_replies(pool: DecoderPool) -> None:
    wrong: list[str] = []

    def fly(name: str) -> None:
        host = pool.open(name, naming(name))
        for tick in range(1, 60):
            if called(host, tick) != f'{name}(at="x {tick}")':
                wrong.append(name)
        host.close()

    threads = [threading.Thread(target=fly, args=(f"s{i}",)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# -- the ST model -----------------------------------------------------------------------------------------------------

TOOLS = [
    {"go": {"to": {"enum": ["left", "right", "stop", "red"]}}},
    {"set_speed": {"v": {"type": "integer", "minimum": 0, "maximum": 9}}, "open": {"door": {"enum": ["red", "green"]}}},
]


def tools(named: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"name": name, "parameters": {"type": "object", "properties": properties, "required": list(properties)}}
        for name, properties in named.items()
    )


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[STSource]:
    folder = build_checkpoint(tmp_path_factory.mktemp("pool") / "model")
    return [STSource(DeciderSpec(model=str(folder), tools=tools(named))) for named in TOOLS]


def asked(tick: int) -> DecisionRequest:
    return DecisionRequest(tick, 1, f"go {WORDS.split()[tick % 20]} {tick % 7}", "turn fast")


def flown(host: Host, ticks: int) -> list[Decision]:
    decisions = []
    for tick in range(ticks):
        host.submit(asked(tick))
        decision = reply_of(host).decision
        assert decision is not None
        decisions.append(decision)
    return decisions


def alone(source: STSource, ticks: int) -> list[Decision]:
    decider = source.build()
    return [decider.decide(asked(tick)) for tick in range(ticks)]


def assert_equal(decisions: list[Decision], expected: list[Decision]) -> None:
    assert [d.call for d in decisions] == [d.call for d in expected]
    for decision, other in zip(decisions, expected, strict=True):
        assert decision.confidence == pytest.approx(other.confidence, abs=1e-3)


def test_sessions_of_one_checkpoint_with_different_tools_decide_as_each_alone(
    pool: DecoderPool, sources: list[STSource]
) -> None:
    hosts = [pool.open(f"s{i}", sources[i % 2]) for i in range(4)]
    with ThreadPoolExecutor(len(hosts)) as threads:
        flights = list(threads.map(lambda host: flown(host, 30), hosts))
    for host in hosts:
        host.close()
    expected = [alone(source, 30) for source in sources]
    # Random models call one thing most of the time: their confidence tells the observations apart.
    assert len({round(d.confidence["arg1"], 3) for d in expected[0]}) > 10
    for flight, own in zip(flights, expected * 2, strict=True):
        assert_equal(flight, own)


def test_sessions_that_come_and_go_leave_nothing_behind(ray_pool: RayPool, sources: list[STSource]) -> None:
    client, decoder = psutil.Process(), psutil.Process(kept_pid(ray_pool))

    def come_and_go(times: int) -> tuple[int, int, int]:
        for i in range(times):
            host = ray_pool.open("a", sources[i % 2])
            flown(host, 3)
            host.close()
        return client.num_fds(), client.memory_info().rss, decoder.memory_info().rss

    came_and_went = come_and_go(10)
    again = come_and_go(40)
    assert again[0] <= came_and_went[0] + 2
    assert again[1] < came_and_went[1] + 15e6
    assert again[2] < came_and_went[2] + 15e6
    # The actor tells how many deciders it keeps.
    assert ray.get(ray_pool._process.actor.close.remote(b"none")) == 0


def kept_pid(pool: RayPool) -> int:
    assert pool._answer is not None
    pid: int = pool._answer["pid"]
    return pid


# -- the process is lost ----------------------------------------------------------------------------------------------


def test_all_sessions_return_after_the_process_was_killed(ray_pool: RayPool, sources: list[STSource]) -> None:
    hosts = [ray_pool.open(f"s{i}", source) for i, source in enumerate(sources)]
    idle = ray_pool.open("idle", naming("idle"))
    before = [flown(host, 5) for host in hosts]
    os.kill(kept_pid(ray_pool), signal.SIGKILL)
    wait_until(lambda: not any(host.alive() for host in [*hosts, idle]), 2.0)
    hosts[0].submit(asked(1))
    assert hosts[0].wait(10_000_000) is None
    idle.close()
    late = ray_pool.open("late", naming("late"))
    wait_until(lambda: all(host.alive() for host in hosts), 20.0)
    for host, own in zip(hosts, before, strict=True):
        assert_equal(flown(host, 5), own)
    assert called(late, 1) == 'late(at="x 1")'
    for host in hosts:
        assert [e.event for e in host.events] == ["lost", "restarted"]
        assert host.events[1].seconds > 0 and host.incarnation == 1
        host.close()
    assert late.events == [] and late.incarnation == 0
    late.close()
    wait_until(lambda: ray.get(ray_pool._process.actor.close.remote(b"none")) == 0, 5.0)


def test_a_session_being_opened_survives_the_loss_of_the_process(ray_pool: RayPool) -> None:
    opened: list[Host] = []
    opener = threading.Thread(target=lambda: opened.append(ray_pool.open("a", naming("slow", "1.0"))))
    opener.start()
    time.sleep(0.4)
    os.kill(kept_pid(ray_pool), signal.SIGKILL)
    opener.join()
    assert called(opened[0], 1) == 'slow(at="x 1")'
    opened[0].close()


def test_a_build_that_ends_the_process_is_given_up_and_the_others_return(ray_pool: RayPool) -> None:
    class Deadly:
        def build(self) -> Any:
            import os

            os._exit(1)

    host = ray_pool.open("a", naming("left"))
    with pytest.raises(UserError, match="lost 3 times"):
        ray_pool.open("b", Deadly())
    wait_until(host.alive, 20.0)
    assert called(host, 1) == 'left(at="x 1")'
    host.close()


def test_a_hung_process_is_noticed_and_goes_on(ray_pool: RayPool) -> None:
    host = ray_pool.open("a", naming("left"))
    pid = kept_pid(ray_pool)
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: not host.alive(), 3.0)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(host.alive, 10.0)
    assert called(host, 1) == 'left(at="x 1")'
    host.close()
