"""The client when its server stops, dies, comes back, or the wire is cut: safe in time, then on again."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rtcontrol.bridges.client import Client, Standing
from tests.bridges.client.worlds import OWN, STRAIGHT, Process, Proxy, until

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
