"""The client when its server stops, dies, comes back, or the wire is cut: safe in time, then on again."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rtcontrol.bridges.client import Client, ClientError, Standing
from rtcontrol.bridges.wire.messages import CallMessage, ErrorMessage, Executed, Hello, Instruct, Observe
from tests.bridges.client.worlds import OWN, STRAIGHT, Process, Proxy, free_port, until
from tests.conformance.check.stand import Stand

TTL_MS = 500.0


class Flight:
    """A loop that looks and asks 50 times a second, and keeps whatever it was told to do."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.seen: list[Standing] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._fly, daemon=True)
        self._thread.start()

    def _fly(self) -> None:
        while not self._ended.is_set():
            self.client.observe(text="left 40 right 10")
            self.seen.append(self.client.call())
            time.sleep(0.02)

    def until(self, status: str) -> None:
        mark = len(self.seen)
        until(lambda: any(s.status == status for s in self.seen[mark:]), f"never {status} again")

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        # The promise: nothing was ever in force that was older than its time-to-live.
        assert all(s.status == "safe" or (s.age_ms or 0) <= TTL_MS for s in self.seen)
        assert all(s.arguments == STRAIGHT["arguments"] for s in self.seen if s.status == "safe")


@contextmanager
def flight(endpoint: str, **options: object) -> Iterator[Flight]:
    with Client.connect(endpoint, **OWN, hz=20, ttl_ms=TTL_MS, **options) as client:
        flying = Flight(client)
        try:
            flying.until("fresh")
            yield flying
        finally:
            flying.end()


def test_stopped_server_means_safe_and_a_resumed_session_when_it_goes_on(own_server: Process) -> None:
    acts: list[Standing] = []
    with flight(own_server.endpoint, on_call=acts.append) as flying:
        token = flying.client.welcome.session
        own_server.signal(signal.SIGSTOP)
        flying.until("safe")
        until(lambda: acts[-1].status == "safe", "the handler was not told")
        until(lambda: not flying.client.connected, "silence was not noticed")
        own_server.signal(signal.SIGCONT)
        flying.until("fresh")
        assert flying.client.welcome.session == token
        assert flying.client.statistics["resumed"] == 1


def test_killed_server_means_safe_and_a_new_session_after_its_restart(own_server: Process) -> None:
    with flight(own_server.endpoint) as flying:
        token = flying.client.welcome.session
        own_server.kill()
        flying.until("safe")
        flying.client.instruct("Go home.")
        own_server.start()
        flying.until("fresh")
        assert flying.client.welcome.session != token
        assert flying.client.welcome.instruction == "Go home."
        assert flying.client.statistics["sessions"] == 2


def test_client_closes_while_its_server_is_stopped(own_server: Process) -> None:
    before = threading.active_count()
    client = Client.connect(own_server.endpoint, **OWN)
    own_server.signal(signal.SIGSTOP)
    client.close()
    client.close()
    until(lambda: threading.active_count() == before, "a thread is left")
    assert client.call().status == "safe"


def test_server_that_stops_in_order_ends_the_session_unless_the_client_persists(own_server: Process) -> None:
    with (
        Client.connect(own_server.endpoint, **OWN, hz=20) as ending,
        Client.connect(own_server.endpoint, **OWN, hz=20, persist=True) as persisting,
    ):
        own_server.stop()
        until(lambda: ending.error is not None, "bye was not heard")
        own_server.start()
        until(lambda: persisting.statistics["sessions"] == 2, "no new session")
        assert not ending.connected
        assert persisting.error is None


def test_cut_wire_is_mended_and_the_session_resumed(server: Process, proxy: Proxy) -> None:
    with flight(proxy.endpoint) as flying:
        token, epoch = flying.client.welcome.session, flying.client.reset()
        flying.until("fresh")
        for times in (1, 2):
            proxy.cut()
            until(lambda n=times: flying.client.statistics["resumed"] == n, "not resumed")  # type: ignore[misc]
            flying.until("fresh")
        assert flying.client.welcome.session == token
        assert flying.client.epoch == epoch


def test_reset_while_the_wire_is_cut_reaches_the_server(server: Process, proxy: Proxy) -> None:
    with flight(proxy.endpoint) as flying:
        proxy.cut()
        assert [flying.client.reset() for _ in range(3)] == [1, 2, 3]
        flying.until("fresh")
        assert flying.client.statistics["last_error"] is None or "epoch" not in flying.client.statistics["last_error"]


def in_thread(endpoint: str, **options: object) -> tuple[list[Client], threading.Thread]:
    clients: list[Client] = []
    thread = threading.Thread(target=lambda: clients.append(Client.connect(endpoint, **OWN, **options)), daemon=True)
    thread.start()
    return clients, thread


def welcomed(stand: Stand, **options: object) -> Client:
    clients, thread = in_thread(stand.endpoint, **options)
    stand.expect(Hello, 10.0, "hello")
    stand.welcome()
    stand.pump(0.1)
    thread.join(10)
    return clients[0]


def test_lockstep_observation_is_said_again_after_a_restart() -> None:
    stand = Stand(f"tcp://127.0.0.1:{free_port()}")
    client = welcomed(stand, pacing="client", ttl_ms=0)
    answers: list[Standing] = []
    deciding = threading.Thread(target=lambda: answers.append(client.decide("left 1", timeout=30)), daemon=True)
    client.welcome.__dict__["ttl_ms"] = 0.0  # the stand's is 400 ms, less than this test takes
    deciding.start()
    first = stand.observation()
    stand.restart()
    stand.expect(Hello, 10.0, "hello")
    stand.send(ErrorMessage(code="session", message="unknown", retryable=True))
    stand.expect(Hello, 10.0, "hello", lambda m: m.resume is None)
    stand.welcome()
    again = stand.observation()
    assert (again.text, again.t_ns) == (first.text, first.t_ns)
    assert again.seq > first.seq
    stand.call(again, ttl_ms=0.0)
    stand.pump(0.1)
    deciding.join(10)
    assert answers[0].status == "fresh"
    client.close()
    stand.close()


def test_lockstep_observation_without_answer_is_safe_and_not_the_call_before() -> None:
    stand = Stand(f"tcp://127.0.0.1:{free_port()}")
    client = welcomed(stand, pacing="client", ttl_ms=0)
    answers: list[Standing] = []
    deciding = threading.Thread(target=lambda: answers.append(client.decide("left 1", timeout=0.2)), daemon=True)
    deciding.start()
    stand.observation()
    deciding.join(10)
    assert (answers[0].status, answers[0].cause, answers[0].arguments) == ("safe", "no_answer", STRAIGHT["arguments"])
    client.close()
    stand.close()


def test_calls_that_a_busy_handler_missed_are_told_as_expired() -> None:
    stand = Stand(f"tcp://127.0.0.1:{free_port()}")
    go = threading.Event()
    client = welcomed(stand, on_call=lambda standing: go.wait(20))
    client.observe(text="left 1")
    observed = stand.expect(Observe, 5.0, "observation")
    ticks = []
    for _ in range(4):
        ticks.append(stand.call(observed, ttl_ms=60_000.0).tick)
        stand.pump(0.1)
    go.set()
    told = {}
    while len(told) < 4:
        message = stand.expect(Executed, 5.0, "executed")
        told[message.tick] = message.outcome
    assert told == dict(zip(ticks, ["executed", "expired", "expired", "executed"], strict=True))
    client.close()
    stand.close()


def test_flood_of_calls_does_not_keep_what_is_in_force_from_ending() -> None:
    stand = Stand(f"tcp://127.0.0.1:{free_port()}")
    client = welcomed(stand)
    client.observe(text="left 1")
    observed = stand.expect(Observe, 5.0, "observation")
    stand.call(observed)
    stand.pump(0.05)
    for tick in range(20_000):
        stand.call(observed, status="held", tick=tick + 2, cause="decide")
        if client.call().status == "safe":
            break
    assert client.call().status == "safe"
    assert client.call().cause == "expired"
    client.close()
    stand.close()


def test_what_the_server_answered_is_told_where_no_welcome_came() -> None:
    stand = Stand(f"tcp://127.0.0.1:{free_port()}")
    failed: list[ClientError] = []

    def connect() -> None:
        try:
            Client.connect(stand.endpoint, **OWN, connect_timeout_s=2.0)
        except ClientError as error:
            failed.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    stand.expect(Hello, 10.0, "hello")
    stand.send(ErrorMessage(code="busy", message="All 64 sessions are taken.", remedy="Try later.", retryable=True))
    stand.pump(0.1)
    thread.join(10)
    assert "the server answered busy: All 64 sessions are taken. Try later." in str(failed[0])
    stand.close()


def test_instruction_that_was_refused_is_not_said_again_to_a_restarted_server() -> None:
    stand = Stand(f"tcp://127.0.0.1:{free_port()}")
    client = welcomed(stand)
    client.instruct("Go on. " * 1000)
    stand.expect(Instruct, 5.0, "instruct")
    stand.send(ErrorMessage(code="instruction", message="It does not fit.", field="instruction"))
    until(lambda: client.statistics["errors"] == 1, "it did not hear the refusal")
    stand.restart()
    stand.expect(Hello, 10.0, "hello")
    stand.send(ErrorMessage(code="session", message="unknown", retryable=True))
    hello = stand.expect(Hello, 10.0, "hello", lambda m: m.resume is None)
    assert hello.instruction == OWN["instruction"]
    # The refusal may also come only now.
    client.instruct("Go on. " * 1000)
    stand.send(ErrorMessage(code="instruction", message="It does not fit.", field="instruction", fatal=True))
    again = stand.expect(Hello, 10.0, "hello")
    assert (again.instruction, client.error) == (OWN["instruction"], None)
    client.close()
    stand.close()


def test_no_reconnect_for_ever_refused_client() -> None:
    stand = Stand(f"tcp://127.0.0.1:{free_port()}")
    refused: list[ClientError] = []

    def connect() -> None:
        try:
            Client.connect(stand.endpoint, **OWN)
        except ClientError as error:
            refused.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    stand.expect(Hello, 10.0, "hello")
    stand.send(ErrorMessage(code="busy", message="The robot is claimed.", remedy="Close it.", fatal=True))
    stand.pump(1.5)
    thread.join(10)
    assert refused
    assert refused[0].remedy == "Close it."
    assert sum(isinstance(m, Hello) for m in stand.heard) == 1
    assert not any(isinstance(m, CallMessage) for m in stand.heard)
    stand.close()
