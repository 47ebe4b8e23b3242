"""What somebody says, understood as one of the agent's goals: by whoever is asked, within a time, or not at all."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol.agents import InvalidCall
from rtcontrol.agents.goal_tools import GoalTools
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, Host
from rtcontrol.models.call import Decision
from rtcontrol.models.errors import UserError

GATE, LIMIT_S = 0.5, 5.0
ITSELF = "itself"  # canonical words are asked of nobody
MOST_KEPT = 1_000  # sentences that are not asked twice
EXAMPLES, DETAIL = 4, 200
LOOK_NS = 20_000_000  # so often it is asked whether anybody still waits
# Why a sentence is not understood, for people; other reasons are failures, by the names that hosts have for them.
WHY = {
    "none": "it asks for none of the goals",
    "unsure": "nobody can be sure enough what it asks for",
    "illegal": "what it asks for is no goal",
    "timeout": "no answer came in time",
    "lost": "the interpreter's process was lost",
    "too_long": "it is longer than an instruction for one goal",
    "overtaken": "something newer was said",
    "denied": "a person said no to it",
    "unanswered": "nobody said yes or no to it in time",
}
PASSED = ("overtaken", "denied", "unanswered")  # whatever it may mean
LONGEST = 1_000  # characters: nobody asks for one goal in more
FINAL = ("none", "unsure", "illegal")  # the same would be answered again


@dataclass(frozen=True, slots=True)
class Understood:
    """What came of a sentence. `text` is the canonical instruction that it was understood as, None where it was not:
    `why` then, in a word, and `detail`. `by` is who was asked, `sure` the least certain part of the answer (None: not
    told), `kept` that it was answered before."""

    said: str
    text: str | None
    by: str
    why: str | None = None
    detail: str = ""
    sure: float | None = None
    took_ms: float = 0.0
    kept: bool = False

    @property
    def failed(self) -> bool:
        """Whether nobody answered, so that another time somebody may."""
        return self.text is None and self.why not in (*FINAL, *PASSED, "too_long")

    def waits(self, confirmed: bool) -> bool:
        """Whether a person must say yes to it, where instructions are `confirmed`: to canonical words nobody must."""
        return confirmed and self.text is not None and self.by != ITSELF

    @property
    def reason(self) -> str:
        """Why it was not understood, for people."""
        told = WHY.get(self.why or "", f"the interpreter failed ({self.why})")
        return f"{told} ({self.detail})" if self.detail else told

    def event(self, t_s: float) -> dict[str, Any]:
        """What the record keeps of it."""
        told = {"said": self.said, "understood": self.text, "by": self.by, "took_ms": round(self.took_ms, 3)}
        if self.why is not None:
            told |= {"not_understood": self.why, **({"detail": self.detail} if self.detail else {})}
        if self.sure is not None:
            told["sure"] = round(self.sure, 4)
        return {**told, **({"kept": True} if self.kept else {}), "t_s": t_s}


class Interpreter:
    """Asks hosts that decide by the tools of `goals`, of each sentence once; any thread may ask, so many at a time as
    `make` may make hosts (`most`).

    `name` is who is asked, for people. An answer less sure than `gate`, in whatever part, counts as not understood; one
    that takes longer than `limit_s` as well. A `shared` one outlives whoever closes it, until its `end`. `note` is
    what people are told of it when a run begins.
    """

    def __init__(
        self,
        name: str,
        goals: GoalTools,
        make: Callable[[], Host],
        gate: float = GATE,
        limit_s: float = LIMIT_S,
        most: int = 1,
        shared: bool = False,
        note: str | None = None,
    ) -> None:
        self.note = note
        self.name, self.goals, self.gate, self.limit_s, self._shared = name, goals, gate, limit_s, shared
        self._make, self._places = make, threading.Semaphore(most)
        self._lock = threading.Lock()
        self._idle: list[Host] = []
        self._built: list[Host] = []
        self._ended = False
        self._kept: dict[str, Understood] = {}
        self._numbers = itertools.count(1)

    def start(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Build what is asked, unless it is there; whoever else builds it now is waited for. Raises UserError."""
        while not self._there():
            if self._places.acquire(timeout=LOOK_NS / 1e9):
                break
            if stopped():
                return
        else:
            return
        try:
            host = self._take()
            try:
                host.start(stopped)
                if not stopped() and host not in self._built:
                    self._built.append(host)
            finally:
                self._give_back(host)
        finally:
            self._places.release()

    def _there(self) -> bool:
        """Whether somebody can be asked, now or when others are answered."""
        return any(host.alive() for host in list(self._built))

    def close(self) -> None:
        if not self._shared:
            self.end()

    def end(self) -> None:
        """Nothing more is asked."""
        with self._lock:
            self._ended, idle, self._idle = True, self._idle, []
        for host in idle:
            host.close()

    def known(self, said: str) -> Understood | None:
        """What takes no time: canonical words, and what was answered before."""
        if len(said) > LONGEST:
            return Understood(said[:LONGEST], None, ITSELF, "too_long")
        if (goal := self.goals.canonical(said)) is not None:
            return Understood(said, goal.text(), ITSELF, sure=1.0)
        kept = self._kept.get(_key(said))
        return None if kept is None else replace(kept, said=said, took_ms=0.0, kept=True)

    def understand(self, said: str, given_up: Callable[[], bool] = lambda: False) -> Understood | None:
        """Blocks for `limit_s` at most. None where it was given up meanwhile. Never raises: `why` tells."""
        if (known := self.known(said)) is not None:
            return known
        began = time.monotonic()
        try:
            found = self._in_turn(said, began + self.limit_s, given_up)
        except UserError as error:
            found = Understood(said, None, self.name, "error", error.what[:DETAIL])
        except Exception as error:
            found = Understood(said, None, self.name, "error", f"{type(error).__name__}: {error}"[:DETAIL])
        if found is None:
            return None
        found = replace(found, took_ms=(time.monotonic() - began) * 1e3)
        if found.text is not None or found.why in FINAL:
            with self._lock:
                self._kept[_key(said)] = found
                if len(self._kept) > MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
        return found

    def examples(self) -> str:
        """What can be said instead."""
        return "; ".join(self.goals.examples(EXAMPLES))

    def _in_turn(self, said: str, until_s: float, given_up: Callable[[], bool]) -> Understood | None:
        """As soon as somebody can be asked."""
        while not self._places.acquire(timeout=LOOK_NS / 1e9):
            if given_up():
                return None
            if time.monotonic() > until_s:
                return self._too_late(said)
        host = self._take()
        try:
            return self._ask(host, said, until_s, given_up)
        finally:
            self._give_back(host)
            self._places.release()

    def _ask(self, host: Host, said: str, until_s: float, given_up: Callable[[], bool]) -> Understood | None:
        if not host.alive():
            host.start(lambda: given_up() or time.monotonic() > until_s)
        while host.wait(0) is not None:
            """An answer that nobody waits for any more."""
        number, left_ns = next(self._numbers), round((until_s - time.monotonic()) * 1e9)
        if left_ns > 0:
            host.submit(DecisionRequest(number, 0, "", said, within_ns=left_ns))
        while (left_ns := round((until_s - time.monotonic()) * 1e9)) > 0:
            if given_up():
                host.cancel(number)
                return None
            reply = host.wait(min(left_ns, LOOK_NS))
            if reply is not None and reply.tick == number:
                return self._read(said, reply)
            if reply is None and not host.alive():
                return Understood(said, None, self.name, "lost")
        host.cancel(number)
        return self._too_late(said)

    def _take(self) -> Host:
        with self._lock:
            if self._ended:
                raise UserError("The interpreter is closed.", "Start it again.")
            return self._idle.pop() if self._idle else self._make()

    def _give_back(self, host: Host) -> None:
        with self._lock:
            if not self._ended:
                self._idle.append(host)
                return
        host.close()

    def _too_late(self, said: str) -> Understood:
        return Understood(said, None, self.name, "timeout", f"{self.limit_s:g} s")

    def _read(self, said: str, reply: DecisionReply) -> Understood:
        decision = reply.decision
        if decision is None:
            why, what = reply.loss or "error", (reply.mistake or (reply.error or "",))[0]
            return Understood(said, None, self.name, why, " ".join(what.split())[:DETAIL])
        sure = _sure(decision)
        if decision.call is None:
            return Understood(said, None, self.name, "none", sure=sure)
        try:
            goal = self.goals.goal(decision.call)
        except (InvalidCall, UserError) as error:
            return Understood(said, None, self.name, "illegal", str(error)[:DETAIL], sure)
        if sure is not None and sure < self.gate:
            what = f"{sure:.2f} that it is {goal.text()!r}, and {self.gate:g} is asked for"
            return Understood(said, None, self.name, "unsure", what, sure)
        return Understood(said, goal.text(), self.name, sure=sure)


def _sure(decision: Decision) -> float | None:
    """Of its least certain part; None where nobody says."""
    return min(decision.confidence.values(), default=None)


def _key(said: str) -> str:
    return " ".join(said.lower().split())
