"""A policy server decides: how it is asked, what is read of its answers, and that all else is lost by its name."""

from __future__ import annotations

import asyncio
import math
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from jobs import FakeLink
from policy_standin import actions, policy
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from rtcontrol.agents import Range, Tools, tool
from rtcontrol.hosts.array_message import pack_message, unpack_message
from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.policy_api import FIRST_S, KEY, PolicyDecider, PolicySource
from rtcontrol.hosts.policy_mapping import PolicyMapping
from rtcontrol.hosts.protocol import DecisionLost, DecisionRequest
from rtcontrol.hosts.remote_api import LONGEST_S
from rtcontrol.models.call import Call, Decision, Plan
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import tool_schemas
from tests.helpers.processes import free_port, until
from tests.rtcontrol.cart import CartWorld, Flight, cart_agent


@tool
def press(force: Annotated[float, Range(-1.0, 1.0)]) -> None:
    """Press with this force; -1 lets go."""


PRESS = press.schema.exact()
STEP_NS = 50_000_000
URL = "ws://127.0.0.1:1"


def request(n: int, within_s: float = 20.0, **more: Any) -> DecisionRequest:
    return DecisionRequest(n, 1, f"n {n}", "press", data={"n": float(n)}, within_ns=round(within_s * 1e9), **more)


def source(url: str = URL, tmp_path: Path | None = None, mapping: str = "", **more: Any) -> PolicySource:
    name = f"openpi:{url}"
    if tmp_path is not None:
        (tmp_path / "policy.yaml").write_text(mapping)
        name += f"#{tmp_path / 'policy.yaml'}"
    return PolicySource.parse(name, [PRESS], STEP_NS, **more)


def asking(*answers: Any, of: PolicySource | None = None) -> tuple[PolicyDecider, FakeLink]:
    """Return a decider that gets these answers, one for each question, and its link."""
    link = FakeLink([pack_message(said) if isinstance(said, dict) else said for said in answers])
    return PolicyDecider(of or source(), link), link


def lost(decider: PolicyDecider, asked: DecisionRequest) -> DecisionLost:
    with pytest.raises(DecisionLost) as caught:
        decider.decide(asked)
    return caught.value


def answered(decider: PolicyDecider, n: int) -> Decision:
    """The first decision there is, of questions from this number on: a connection that was cut is made anew."""
    made: list[Decision] = []

    def asks() -> bool:
        try:
            made.append(decider.decide(request(n + len(made))))
        except DecisionLost as error:
            assert error.loss in ("connection", "timeout"), error
        return bool(made)

    until(asks)
    return made[0]


# -- what is asked and read --------------------------------------------------------------------------------------------


def test_observation_becomes_a_question_and_its_chunk_a_plan() -> None:
    decider, link = asking(actions(0.25, 0.5, -0.5))
    decision = decider.decide(request(7))
    calls = tuple(Call("press", {"force": force}) for force in (0.25, 0.5, -0.5))
    assert decision.plan == Plan(calls, STEP_NS) and decision.call == calls[0]
    assert decision.confidence == {"function": 1.0, "arg1": 1.0} and link.cuts == 0
    (asked,) = link.questions
    assert asked["observation/state"].tolist() == [7.0] and asked["prompt"] == "press"


def test_mapping_says_how_long_an_action_lasts_and_how_many(tmp_path: Path) -> None:
    decider, _ = asking(actions(0.1, 0.2, 0.3), of=source(URL, tmp_path, "step_ms: 20\nhorizon: 2"))
    plan = decider.decide(request(1)).plan
    assert plan is not None and plan.step_ns == 20_000_000 and len(plan.calls) == 2


def test_policys_confidence_is_that_of_the_decision() -> None:
    decider, _ = asking(*(actions(0.1, confidence=sure) for sure in (0.25, 7.0, "sure")))
    found = [decider.decide(request(n)).confidence["function"] for n in (1, 2, 3)]
    assert found == [0.25, 0.0, 0.0], "what is no probability is no confidence"


def test_one_action_out_of_bounds_makes_the_chunk_illegal() -> None:
    decider, link = asking(actions(0.1, 0.2, 1.5))
    decision = decider.decide(request(1))
    assert decision.plan is None and decision.call == Call("press", {"force": 1.5}) and link.cuts == 1


# Within how many ms, in the warm-up or late: how long the answer is waited for.
LIMITS = {
    "50 ms": (request(1, 0.05), {}, 0.0475 - 0.003),
    "8 ms": (request(1, 0.008), {}, 0.006 - 0.0015),
    "1 ms": (request(1, 0.001), {}, 0.0),
    "for ever": (request(1, 0.0), {}, LONGEST_S),
    "the first of all": (request(-1, 0.0), {}, FIRST_S),
    "late": (request(1, 0.05), {"late": True}, LONGEST_S),
}


@pytest.mark.parametrize(("asked", "how", "limit_s"), LIMITS.values(), ids=LIMITS.keys())
def test_answer_is_given_up_before_its_deadline(asked: DecisionRequest, how: dict[str, Any], limit_s: float) -> None:
    decider, link = asking(actions(0.1), actions(0.2), of=source(**how))
    decider.decide(asked)
    assert link.limits == [pytest.approx(limit_s)]
    decider.decide(request(-1, 0.0))
    assert link.limits[1] == LONGEST_S, "a policy is compiled with the first question"


def test_source_travels_and_shows_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "a-secret-of-the-tests")
    made = source()
    assert pickle.loads(pickle.dumps(made)).key == "a-secret-of-the-tests" and "secret" not in repr(made)
    assert "secret" not in str(PolicyDecider(made, FakeLink([])).info())


# -- what is wrong at the start ----------------------------------------------------------------------------------------


def test_key_does_not_travel_to_another_machine_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "a-secret-of-the-tests")
    with pytest.raises(UserError, match="in the clear"):
        source("ws://10.0.0.7:8000")
    assert source("wss://10.0.0.7:8000").key == "a-secret-of-the-tests"


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "127.0.0.1:8000", "ws://", "ws://u:p@h:1", "ws://h:port"])
def test_what_is_no_address_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(UserError) as caught:
        source(url)
    assert "openpi:ws://HOST:PORT#policy.yaml" in caught.value.remedy


UNFIT = {
    "two numbers an action": (np.zeros((4, 2), np.float32), r"\(4, 2\); \[steps, 1\] are mapped"),
    "a batch": (np.zeros((1, 4, 1), np.float32), r"\(1, 4, 1\)"),
    "whole numbers": (np.zeros((4, 1), np.int64), "int64, no array of floats"),
    "a list": ([[0.5]], "list, no array of floats"),
}


@pytest.mark.parametrize(("chunk", "what"), UNFIT.values(), ids=UNFIT.keys())
def test_unfit_policy_is_an_error_before_its_first_good_answer(chunk: Any, what: str) -> None:
    decider, link = asking({"actions": chunk})
    with pytest.raises(UserError, match=what) as caught:
        decider.decide(request(1))
    assert "docs/policies.md" in caught.value.remedy and link.cuts == 1


def test_observation_without_what_is_named_is_no_loss_of_the_policys(tmp_path: Path) -> None:
    decider, link = asking(actions(0.1), of=source(URL, tmp_path, "observation: {state: [speed]}"))
    with pytest.raises(UserError, match="no 'speed'") as raised:
        decider.decide(request(1))
    assert "the mapping file" in raised.value.remedy and not link.questions


# -- what is wrong later -----------------------------------------------------------------------------------------------


GOOD = pack_message(actions(0.5))
SHORT = {b"__ndarray__": True, b"data": b"\x00" * 7, b"dtype": "<f4", b"shape": [4, 1]}
# What comes in place of the third answer, and the loss that it is. `EARLIER` stands for the first.
EARLIER = b"the first answer"
FAULTS: dict[str, tuple[Any, str]] = {
    "garbage": (b"\xc1" + bytes(range(200)), "malformed"),
    "half of an answer": (GOOD[: len(GOOD) // 2], "malformed"),
    "no actions": ({"server_timing": {"infer_ms": 1.0}}, "malformed"),
    "actions in a map": ({"actions": {"a": np.zeros(1)}}, "malformed"),
    "no action": ({"actions": np.zeros((0, 1), np.float32)}, "malformed"),
    "two numbers an action": ({"actions": np.zeros((4, 2), np.float32)}, "malformed"),
    "a batch": ({"actions": np.zeros((1, 4, 1), np.float32)}, "malformed"),
    "whole numbers": ({"actions": np.ones((4, 1), np.int64)}, "malformed"),
    "text": ({"actions": np.full((4, 1), "1")}, "malformed"),
    "fewer bytes than the shape says": ({"actions": SHORT}, "malformed"),
    "a status of two": ({**actions(0.5), "status": np.array([1, 2])}, "refused"),
    "a status that is null": ({**actions(0.5), "status": None}, "refused"),
    "not a number": (actions(math.nan), "not_finite"),
    "infinity": (actions(math.inf), "not_finite"),
    "a fallback": (actions(0.5, status="held"), "refused"),
    "an earlier answer": (EARLIER, "repeated"),
    "lost on the way": (DecisionLost("timeout", "no answer in time"), "timeout"),
}


# Physical-superintelligence-lab/Psi0#95 and strands-labs/robots#3321 (silent), robocurve/inspect-robots#356 and
# strands-labs/robots#1754 (numbers that are not finite), huggingface/OpenEnv#1143 (an old answer read as the new).
@pytest.mark.parametrize(("said", "loss"), FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_is_lost_by_its_name_and_cuts_the_connection(said: Any, loss: str) -> None:
    good = [pack_message(actions(n / 100)) for n in (1, 2, 4)]
    decider, link = asking(good[0], good[1], good[0] if said is EARLIER else said, good[2])
    for n in (1, 2):
        assert decider.decide(request(n)).call == Call("press", {"force": float(np.float32(n / 100))})
    assert lost(decider, request(3)).loss == loss
    assert link.cuts == (0 if isinstance(said, DecisionLost) else 1), "what follows may answer the same question"
    assert decider.decide(request(4)).call == Call("press", {"force": float(np.float32(0.04))})


def test_answer_that_another_worker_had_is_known_again() -> None:
    shared, said = source(), pack_message(actions(0.1))
    first, second = (asking(said, of=shared)[0] for _ in range(2))
    first.decide(request(1))
    assert lost(second, request(2)).loss == "repeated"


# robocurve/inspect-robots#356: an action of which one number is not finite is no action at all.
@pytest.mark.parametrize("place", [(0, 1), (3, 0)], ids=["where nobody looks", "beyond the horizon"])
def test_number_that_is_not_finite_spoils_its_chunk(tmp_path: Path, place: tuple[int, int]) -> None:
    chunk = np.full((4, 2), 0.5, np.float32)
    chunk[place] = np.nan
    text = "actions: [{parameter: force}, null]\nhorizon: 2"
    decider, _ = asking({"actions": chunk}, of=source(URL, tmp_path, text))
    assert lost(decider, request(1)).loss == "not_finite"


# -- with real sockets -------------------------------------------------------------------------------------------------


@contextmanager
def looped(handler: Callable[[ServerConnection], Any], check: Any = None) -> Iterator[str]:
    """A server on one event loop, as openpi's is."""
    loop, port = asyncio.new_event_loop(), free_port()
    begun = threading.Event()

    async def serving() -> None:
        given: dict[str, Any] = {"compression": None, "max_size": None, "process_request": check}
        async with serve(handler, "127.0.0.1", port, **given) as server:
            begun.set()
            await server.serve_forever()

    def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(serving())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert begun.wait(30)
    try:
        yield f"ws://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        thread.join(10)


def test_the_key_is_sent_as_openpis_clients_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "a-secret-of-the-tests")
    with policy(lambda n, asked: actions(0.1)) as made:
        source(made.url).build().decide(request(1))
    assert made.headers[0]["authorization"] == "Api-Key a-secret-of-the-tests"


@pytest.mark.parametrize("status", [401, 503])
def test_a_server_that_refuses_the_websocket_is_told_by_its_status(status: int) -> None:
    with policy(lambda n, asked: actions(0.1), refuse=status) as made:
        error = lost(source(made.url).build(), request(1))
    assert error.loss == "http" and f"HTTP {status}" in str(error) and (KEY in str(error)) == (status == 401)


# websockets/ws#2013: the client took the header of the key along to whatever host it was sent to.
@pytest.mark.parametrize("status", [302, 307])
def test_a_redirect_is_not_followed_and_the_key_goes_nowhere_else(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "a-secret-of-the-tests")
    with policy(lambda n, asked: actions(0.1)) as other:

        def elsewhere(connection: ServerConnection, asked: Request) -> Response:
            return Response(status, "Elsewhere", Headers({"Location": other.url, "Content-Length": "0"}))

        with looped(nobody, elsewhere) as url:
            error = lost(source(url).build(), request(1))
    assert error.loss == "http" and f"HTTP {status}" in str(error)
    assert not other.headers, "nobody came there"


async def nobody(connection: ServerConnection) -> None:
    """No connection gets so far."""


def test_nobody_there_is_a_connection_that_was_lost() -> None:
    error = lost(source(f"ws://127.0.0.1:{free_port()}").build(), request(1))
    assert error.loss == "connection" and "ConnectionRefusedError" in str(error)


# strands-labs/robots#3321: a listener that accepts the connection and says nothing held its client for ever.
def test_a_listener_that_never_says_anything_costs_the_time_of_the_question_and_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        decider = source(f"ws://127.0.0.1:{silent.getsockname()[1]}").build()
        for n in (1, 2):
            error = lost(decider, request(n, 0.1))
            assert error.loss == "timeout" and str(error) == "no connection in time"


async def close(connection: ServerConnection) -> None:
    await connection.close()


async def cut_midway(connection: ServerConnection) -> None:
    connection.transport.write(b"\x82\x7f" + len(GOOD).to_bytes(8) + GOOD[:20])
    await asyncio.sleep(0.005)
    connection.transport.abort()


async def endless(connection: ServerConnection) -> None:
    connection.transport.write(b"\x82\x7f" + (1 << 40).to_bytes(8) + GOOD)


async def drip(connection: ServerConnection) -> None:
    for byte in b"\x82\x7f" + len(GOOD).to_bytes(8) + GOOD:
        connection.transport.write(bytes([byte]))
        await asyncio.sleep(0.5)


@pytest.mark.parametrize(
    ("fault", "losses"),
    [(close, "connection"), (cut_midway, "connection"), (endless, "connection"), (drip, "timeout")],
)
def test_a_broken_connection_is_lost_by_its_name_and_made_again(fault: Any, losses: str) -> None:
    async def serve_once(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            await connection.send(pack_message({}))
            async for asked in connection:
                seen = float(unpack_message(asked)["observation/state"][0])  # type: ignore[arg-type]
                await (fault(connection) if seen == 1 else connection.send(pack_message(actions(seen / 100))))

    with looped(serve_once) as url:
        decider = source(url).build()
        assert lost(decider, request(1, 0.3 if fault is drip else 20.0)).loss in losses.split()
        assert answered(decider, 10).call is not None


# huggingface/OpenEnv#1143: after a timeout the socket was kept, and each answer from then on was one too old.
def test_an_answer_that_comes_after_its_time_is_never_that_of_a_later_question() -> None:
    def slowly(n: int, asked: dict[str, Any]) -> dict[str, Any]:
        if n == 2:
            time.sleep(0.4)
        return actions(float(asked["observation/state"][0]) / 100)

    with policy(slowly) as made:
        decider = source(made.url).build()
        decider.decide(request(1))
        assert lost(decider, request(2, 0.1)).loss == "timeout"
        for n in range(3, 12):
            found = answered(decider, n).call
            assert found is not None and found.arguments["force"] >= np.float32(n / 100) - 1e-6
    assert len(made.headers) >= 2, "the one before was cut"


# Physical-Intelligence/openpi#938: while such a server decides or sends, its event loop answers no ping.
def test_a_second_good_answer_that_is_sent_before_the_pong_is_not_that_of_the_next_question() -> None:
    connections: list[ServerConnection] = []

    async def serve_twice(connection: ServerConnection) -> None:
        connections.append(connection)
        with suppress(ConnectionClosed):
            await connection.send(pack_message({}))
            async for asked in connection:
                seen = float(unpack_message(asked)["observation/state"][0])  # type: ignore[arg-type]
                if seen == 3:
                    await connection.send(pack_message(actions(0.5)))
                    time.sleep(0.1)
                await connection.send(pack_message(actions(seen / 100)))

    with looped(serve_twice) as url:
        decider = source(url).build()
        for n in range(1, 7):
            call = decider.decide(request(n)).call
            assert call == Call("press", {"force": 0.5 if n == 3 else float(np.float32(n / 100))})
    assert len(connections) == 2


def test_the_end_of_a_host_cuts_the_connection_of_its_decider_also_in_a_question() -> None:
    with policy(lambda n, asked: None) as made:
        host = InProcessHost(source(made.url), 2)
        host.start()
        deciders = list(host.deciders)
        host.submit(request(1))
        until(lambda: made.questions)
        host.close()
        for decider in deciders:
            assert isinstance(decider, PolicyDecider)
            error = lost(decider, request(2))
            assert error.loss == "connection" and "closed" in str(error)
        reply = host.wait(20_000_000_000)
        assert reply is None or reply.loss == "connection"


# modelscope/FunASR#3533: what was deaf while it worked was cut by the pings, and its answer was lost.
def test_a_server_that_is_deaf_while_it_decides_is_not_cut_by_pings() -> None:
    connections: list[ServerConnection] = []

    async def compiling(connection: ServerConnection) -> None:
        connections.append(connection)
        with suppress(ConnectionClosed):
            await connection.send(pack_message({}))
            async for _ in connection:
                time.sleep(0.6)
                await connection.send(pack_message(actions(0.5)))

    with looped(compiling) as url:
        decider = source(url).build()
        for n in (1, 2):
            assert decider.decide(request(n)).call == Call("press", {"force": 0.5})
    assert len(connections) == 1


# Physical-superintelligence-lab/Psi0#95: a half-open connection, and the controller went on with its last action.
def test_a_half_open_connection_in_flight_is_followed_by_the_safe_call(tmp_path: Path) -> None:
    with relayed_cart() as (url, stop):
        agent = cart_agent(hold_ms=200.0)
        cart = PolicySource.parse(f"openpi:{url}", agent.tools.openai(), STEP_NS)
        world = CartWorld()
        flight = Flight(tmp_path, world=world, agent=agent, host=InProcessHost(cart), duration_s=None, hz=20.0)

        def person() -> None:
            until(lambda: sum(call.arguments["force"] != 0 for _, call, _ in world.executed) >= 3)
            stop()
            stopped_s = time.monotonic()
            until(lambda: any(at > stopped_s and call.arguments["force"] == 0 for at, call, _ in world.executed))
            time.sleep(0.3)

        flight.run_beside(person)
    stops = [i for i, (_, call, _) in enumerate(world.executed) if call.arguments["force"] == 0]
    assert stops and all(call.arguments["force"] == 0 for _, call, _ in world.executed[stops[0] :])
    assert flight.loop.account.misses_by_cause["decide"] >= 3


@contextmanager
def relayed_cart() -> Iterator[tuple[str, Callable[[], None]]]:
    """A policy that pushes, and hangs from `stop` on."""
    hung = threading.Event()

    def push(n: int, asked: dict[str, Any]) -> Any:
        return None if hung.is_set() else actions(2.0 if n % 2 else 1.0)

    with policy(push) as made:
        yield made.url, hung.set


ENGINES: dict[str, Any] = {
    "name": "engines",
    "parameters": {
        "properties": {
            "main": {"enum": [0, 50, 60, 100]},
            "side": {"type": "number", "minimum": -1, "maximum": 1},
            "turns": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
        },
        "required": ["main", "side", "turns"],
    },
}
GRIP: dict[str, Any] = {
    "name": "grip",
    "parameters": {
        "properties": {"closed": {"type": "boolean"}, "way": {"enum": ["left", "stay", "right"]}},
        "required": ["closed", "way"],
    },
}
FINE: dict[str, Any] = {
    "name": "fine",
    "parameters": {
        "properties": {"at": {"type": "number", "minimum": 0, "maximum": 10, "multipleOf": 0.001}},
        "required": ["at"],
    },
}


def mapping(tmp_path: Path, text: str | None, *tools: dict[str, Any]) -> PolicyMapping:
    if text is None:
        return PolicyMapping.read(None, tool_schemas(list(tools)))
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    return PolicyMapping.read(str(file), tool_schemas(list(tools)))


def test_without_a_file_a_tools_numbers_in_order_are_an_action(tmp_path: Path) -> None:
    made = mapping(tmp_path, None, ENGINES)
    call = made.call([57.0, 0.25, 3.4])
    assert call == Call("engines", {"main": 60, "side": 0.25, "turns": 3})
    assert type(call.arguments["main"]) is int and type(call.arguments["turns"]) is int


def test_the_numbers_of_the_first_observation_in_order_are_the_state(tmp_path: Path) -> None:
    made = mapping(tmp_path, None, ENGINES).fixed({"x": 1.5, "name": "r2", "legs": True, "image": np.zeros(3)})
    told = made.question({"legs": False, "x": 2.0}, "land")
    assert told["observation/state"].tolist() == [2.0, 0.0] and told["observation/state"].dtype == np.float32
    assert told["prompt"] == "land"


def test_numbers_are_scaled_ignored_and_levels_named(tmp_path: Path) -> None:
    text = """
        prompt: null
        observation: {state: [x, y], cam: image}
        actions: [null, {parameter: way, levels: {-1: left, 0: stay, 1: right}},
                  {parameter: closed, scale: 2, offset: -1, levels: {-1: true, 1: false}}]
    """
    made = mapping(tmp_path, text, GRIP)
    assert made.call([9.9, 0.6, 0.2]) == Call("grip", {"way": "right", "closed": True})
    image = np.zeros((4, 4, 3), np.uint8)
    told = made.question({"x": 1, "y": 2, "image": image}, "go")
    assert set(told) == {"state", "cam"} and told["cam"] is image


@pytest.mark.parametrize("row", [[120.1, 0, 0], [-25.1, 0, 0], [50, 1.01, 0], [50, 0, 1_000_001], [50, 0, -1]])
def test_what_is_out_of_bounds_is_no_legal_call_unless_it_clips(tmp_path: Path, row: list[float]) -> None:
    from rtcontrol.agents import InvalidCall, Tools

    tools = Tools([ENGINES])
    with pytest.raises(InvalidCall):
        tools.validate(mapping(tmp_path, None, ENGINES).call(row))
    tools.validate(mapping(tmp_path, "clip: true", ENGINES).call(row))


def test_half_a_step_beyond_the_last_value_still_means_it(tmp_path: Path) -> None:
    made = mapping(tmp_path, None, ENGINES)
    assert made.call([120.0, 0, 0]).arguments["main"] == 100 and made.call([-25.0, 0, 0]).arguments["main"] == 0


def test_a_fine_grid_takes_the_nearest_of_its_numbers(tmp_path: Path) -> None:
    made = mapping(tmp_path, None, FINE)
    assert made.call([1.23449]).arguments["at"] == 1.234 and made.call([10.2]).arguments["at"] == 10.2


def test_a_number_that_overflows_when_it_is_scaled_is_no_call(tmp_path: Path) -> None:
    with pytest.raises(OverflowError):
        mapping(tmp_path, "actions: [{parameter: at, scale: 1.0e+300}]", FINE).call([1e300])


OBSERVATIONS = {
    "a field that is not there": {"x": 1.0},
    "no number": {"x": 1.0, "y": "north"},
    "not finite": {"x": 1.0, "y": float("nan")},
}


@pytest.mark.parametrize("data", OBSERVATIONS.values(), ids=OBSERVATIONS.keys())
def test_an_observation_without_what_is_named_is_told_by_its_field(tmp_path: Path, data: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="'y'"):
        mapping(tmp_path, "observation: {state: [x, y]}", ENGINES).question(data, "")


WRONG = {
    "no YAML": ("a: [", "cannot be read"),
    "no map": ("3", "is not of type 'object'"),
    "an unknown key": ("action: []", "'action'"),
    "an unknown tool": ("tool: fly", "no tool 'fly'"),
    "an unknown parameter": ("actions: [{parameter: thrust}]", "no parameter 'thrust'"),
    "a parameter twice": ("actions: [{parameter: main}, {parameter: main}]", "twice"),
    "one that is missing": ("actions: [{parameter: main}]", "its side"),
    "a scale of nothing": ("actions: [{parameter: main, scale: 0}]", r"actions\[0\].scale"),
    "a scale without end": ("actions: [{parameter: main, scale: .inf}]", r"actions\[0\].scale: inf"),
    "a scale that is not a number": ("actions: [{parameter: main, scale: .nan}]", r"actions\[0\].scale: nan"),
    "an offset that is not a number": ("actions: [{parameter: main, offset: .nan}]", r"actions\[0\].offset: nan"),
    "a step that is not a number": ("step_ms: .nan", "step_ms: nan"),
    "a level beyond all floats": (f"actions: [{{parameter: main, levels: {{{10**400}: 50}}}}]", "levels"),
    "a level that is not allowed": ("actions: [{parameter: main, levels: {1: 55}}]", "may not be '55'"),
    "levels of no numbers": ("actions: [{parameter: main, levels: {on: 50}}]", "levels"),
    "an entry with another key": ("actions: [{parameter: main, gain: 2}]", "'gain'"),
    "a field that is a truth value": ("observation: {state: [x, on]}", r"state\[1\]: True"),
    "no time": ("step_ms: 0", "step_ms"),
}


@pytest.mark.parametrize(("text", "what"), WRONG.values(), ids=WRONG.keys())
def test_a_mistake_in_the_file_is_told_with_its_name_and_what_to_do(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(UserError, match=what) as caught:
        mapping(tmp_path, text, ENGINES)
    assert "policy.yaml" in caught.value.what and caught.value.remedy


def test_what_no_number_stands_for_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="closed of the tool grip are no numbers") as caught:
        mapping(tmp_path, None, GRIP)
    assert "levels" in caught.value.remedy
    with pytest.raises(UserError, match="2 tools"):
        mapping(tmp_path, None, ENGINES, GRIP)
    assert mapping(tmp_path, "tool: engines", ENGINES, GRIP).tool == "engines"
    with pytest.raises(UserError, match="cannot be read"):
        PolicyMapping.read(str(tmp_path / "none.yaml"), tool_schemas([ENGINES]))


@pytest.mark.parametrize(
    "value", [10**310, -(10**310), math.inf, math.nan, 1e300, "two", None, np.zeros(2), [1]], ids=str
)
def test_an_observed_value_that_no_number_of_32_bits_is_is_told_by_its_name(tmp_path: Path, value: Any) -> None:
    made = mapping(tmp_path, "observation: {state: [x, speed]}", ENGINES)
    with pytest.raises(UserError, match="'speed' of the observation is"):
        made.question({"x": 1.0, "speed": value}, "go")


@pytest.mark.parametrize("value", [[[1], [1, 2]], [1, None], {"a": 1}, np.zeros(2, complex)])
def test_what_a_world_gives_for_a_picture_that_is_no_array_is_told_by_its_name(tmp_path: Path, value: Any) -> None:
    made = mapping(tmp_path, "observation: {state: camera}", ENGINES)
    with pytest.raises(UserError, match="'camera' of the observation is no array"):
        made.question({"camera": value}, "go")


CLIPPED: list[dict[str, Any]] = [
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "exclusiveMinimum": 0.1},
    {"type": "number", "minimum": -1, "maximum": 1, "multipleOf": 0.1},
    {"type": "number", "multipleOf": 0.25},
    {"type": "number", "minimum": 0.3, "multipleOf": 0.1},
    {"type": "number", "exclusiveMaximum": 3, "multipleOf": 0.1},
    {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
    {"type": "integer", "minimum": 0.5},
    {"type": "integer", "minimum": 1, "multipleOf": 7},
    {"type": "integer"},
    {"type": "number"},
]


@pytest.mark.parametrize("schema", CLIPPED, ids=str)
def test_what_is_clipped_is_always_allowed(tmp_path: Path, schema: dict[str, Any]) -> None:
    tool = {"name": "move", "parameters": {"properties": {"x": schema}, "required": ["x"]}}
    made, tools = mapping(tmp_path, "clip: true", tool), Tools([tool])
    for number in (-1e12, -5.0, -0.06, 0.0, 0.1, 0.33, 0.95, 1.0, 3.4, 10.0, 101.0, 1e12):
        tools.validate(made.call([number]))


def test_a_step_without_bounds_rounds(tmp_path: Path) -> None:
    tool = {"name": "move", "parameters": {"properties": {"x": {"type": "number", "multipleOf": 0.1}}}}
    tool["parameters"]["required"] = ["x"]  # type: ignore[index]
    assert mapping(tmp_path, None, tool).call([0.3000001]) == Call("move", {"x": 0.3})
