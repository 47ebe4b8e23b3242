"""Clients of a drilled fleet, a program of their own that has nothing of the project but `rtcontrol_client`.

`python -m rtcontrol.drill.fleet.flock JSON`: connects so many clients, acts by their calls, and says on stdout, a JSON
object a line, what became of each tick. Each judges by its own stamps whether it acts by a call beyond its
time-to-live. Ends when stdin does.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rtcontrol_client import Client, ClientError

ACT_S = 0.01  # at least so often a client acts by what is in force
LEAD_MS = 20.0  # an observation before its tick
CONNECT_S = 120.0
# Whoever acts by an observation of another instant has a new one; and so often it is told what nothing else tells.
STAMP_NS, TELL_NS = 5_000_000, 200_000_000


class FlownSession:
    """One client. `beyond`: how often it acted by a call that was too old; `twice`: calls of an observation before that
    of a call which it had."""

    def __init__(self, number: int, told: Mapping[str, Any], lock: threading.Lock) -> None:
        endpoints: Sequence[str] = told["endpoints"]
        turn = number % len(endpoints)
        self._number, self._texts, self._lock = number, told["texts"], lock
        self._client = Client(
            ",".join([*endpoints[turn:], *endpoints[:turn]]), {**told["options"], "connect_timeout_s": CONNECT_S}
        )
        self._captured: dict[int, int] = {}
        self._session, self._seen = "", -1
        self.beyond = self.twice = 0
        self._before: tuple[Any, ...] = ()
        self._last: dict[str, Any] = {}
        self._told_ns = 0
        self._error = ""

    def fly(self, over: threading.Event) -> None:
        due_ns, looks = 0, 0
        while not over.is_set():
            now_ns = time.monotonic_ns()
            if now_ns >= due_ns and self._error == "":
                looks += 1
                due_ns = self._look(self._texts[looks % len(self._texts)])
            self._client.wait(ACT_S)
            self._act()
            if self._client.error is not None:
                self._error = str(self._client.error)
                time.sleep(ACT_S)
        self._client.close()

    def _look(self, text: str) -> int:
        stamp_ns = time.monotonic_ns()
        try:
            seq = self._client.observe(text=text, t_ns=stamp_ns)
        except ClientError as error:
            self._error = str(error)
            return stamp_ns
        self._captured[seq] = stamp_ns
        if len(self._captured) > 1000:
            del self._captured[min(self._captured)]
        return self._client.next_observation_ns(LEAD_MS)

    def _act(self) -> None:
        client, now_ns = self._client, time.monotonic_ns()
        standing = client.call()
        # By when its observation was made: a decision to go on with the same call renews it.
        stamp = None if standing.age_ms is None else round(now_ns / STAMP_NS - standing.age_ms * 1e6 / STAMP_NS)
        seen = (standing.status, standing.cause, standing.tick, stamp, client.connected, client.address, self._error)
        changed = seen != self._before or now_ns > self._told_ns + TELL_NS
        figures = client.statistics if changed else None
        if figures is not None:
            self._before = seen
            session = client.welcome.session if figures["sessions"] else ""
            if session != self._session:  # its observations are numbered anew
                self._session, self._seen = session, -1
                self._captured.clear()
        if standing.status != "safe" and standing.call is not None:
            self._judge(standing, now_ns)
        if figures is not None:
            self._tell(standing, figures, now_ns)

    def _tell(self, standing: Any, figures: Mapping[str, Any], now_ns: int) -> None:
        client, counts = self._client, [figures[name] for name in ("fresh", "held", "safe")]
        line = {"c": self._number, "n": counts, "st": standing.status, "why": standing.cause, "up": client.connected}
        line |= {"at": client.address, "s": self._session[:8], "error": self._error, "resumed": figures["resumed"]}
        line |= {"beyond": self.beyond, "twice": self.twice + figures["ignored"].get("order", 0)}
        self._told_ns = now_ns
        if line != self._last:
            self._last = line
            with self._lock:
                print(json.dumps({**line, "t": now_ns}), flush=True)

    def _judge(self, standing: Any, now_ns: int) -> None:
        ttl_ms = self._client.welcome.ttl_ms
        stamp_ns = self._captured.get(standing.seq_obs)
        # One that was sent while there was no session has another number: by the client's own word.
        age_ms = standing.age_ms if stamp_ns is None else (now_ns - stamp_ns) / 1e6
        if ttl_ms and (age_ms is None or age_ms > ttl_ms):
            self.beyond += 1
        if standing.status == "fresh" and standing.seq_obs is not None:
            self.twice += standing.seq_obs < self._seen
            self._seen = max(self._seen, standing.seq_obs)


def main() -> None:
    told, lock, over = json.loads(sys.argv[1]), threading.Lock(), threading.Event()
    sessions = [FlownSession(number, told, lock) for number in range(told["clients"])]
    threads = [threading.Thread(target=one.fly, args=(over,)) for one in sessions]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
