"""Whatever reaches the environment goes through here, on a thread of its own: calls, safe calls, what it is told."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Literal, cast

from rtcontrol.agents import Agent
from rtcontrol.agents.signatures import carry_out
from rtcontrol.envs.base import Effect, Emission, Emitting, Environment, Stepping
from rtcontrol.loop.realtime import beside
from rtcontrol.models.call import Call
from rtcontrol.records import Command, Completion, Fault, OperatorCommand, SafeAttempt

# Between two attempts on the way out where no clock of the world's says when.
EXIT_RETRY_NS = 50_000_000
# So long one of several safe calls is waited for before the next one is begun beside it; and where the world waits.
PATIENCE_S, PATIENCE_LOCKSTEP_S = 0.02, 1.0
# So long its end waits for its thread: with the safe calls in force, and where they are still to be tried once.
JOIN_S, JOIN_UNTRIED_S = 1.0, 0.5


class Actuator:
    """Owns everything that reaches `env`. A world that blocks stops this thread alone; nothing else waits for it.

    At most one call waits: the newest wins. `safe` clears it, and is what acts first when the world yields; a safe
    call that fails is tried again every `retry_ns` (None: when `retry` says so) until it is in force or a newer call
    of its tool acted, and never is in a world that takes none, as its last episode has ended (`over`). One that acted
    in a world that has yet to step with it is not called again: the world is asked so often whether it has, unless a
    newer call acts first. What an emitting world could not be told of has failed, too. Several safe calls are begun in
    order, each on a thread of its own: one that hangs or fails holds up none of the others; other calls wait for all of
    them. Where the loop itself does not come back by `guard_ns` (the agent's own code hangs, say), they are demanded
    here. What came of it all is put into `effects`, in order; `wake` tells. `bar` and `safe` any thread may call."""

    def __init__(self, agent: Agent, env: Environment, retry_ns: int | None, wake: Callable[[], None]) -> None:
        self._tools, self._safe_calls = agent.tools, agent.fallback.safe_calls
        self._functions = {t.name: t.function for t in agent.tools}
        self._env, self._bindings, self._wake, self._retry_ns = env, env.bindings, wake, retry_ns
        self._emit: Callable[[Emission], None] = env.emit if isinstance(env, Emitting) else lambda emission: None
        self.parting: Emission | None = None  # what such a world is told where the loop hangs
        self.effects: deque[Completion | SafeAttempt | Fault | OperatorCommand] = deque()
        self.doings: deque[list[int]] = deque(maxlen=8)  # begin and end (0: not yet) of its last calls, safe ones too
        self.shut: str | None = None  # why nothing but the safe calls may act: people said so (`Override`)
        self.open_ns = 0  # until then it was shut: what was asked for before does not act
        self._acting: Command | None = None  # the last order that was begun
        self.guard_ns: int | None = None  # by then the loop is to be back, which says so at each release
        self._closed = self.attempting = False  # a safe call was demanded, or is due again, and not tried since
        self.over = False  # the world took no calls any more when the safe ones were demanded last
        self._lock, self._bell, self._in_force = threading.Lock(), SimpleQueue[None](), threading.Event()
        self._jobs: deque[Command | Emission | str] = deque()
        self._order: Command | None = None
        self._wanted: list[Call | None] = []  # None: the agent has none, and the world is told so
        self._stepping = env if isinstance(env, Stepping) else None
        self._unstepped: dict[int, tuple[int, int]] = {}  # those of them that have acted, by id(): when, which attempt
        self._under_way: list[Call | None] = []  # safe calls that were begun and have not ended; None: their round
        self._demand = self._attempt = 0
        self._due_ns: int | None = None  # of the next attempt
        self._why, self._emission = "", cast(Emission | None, None)
        self.thread: threading.Thread | None = None

    # -- from the loop's thread; nothing here blocks ------------------------------------------------------------------

    def start(self) -> None:
        self.thread = threading.Thread(target=self._work, name="actuator", daemon=True)
        self.thread.start()

    def arm(self, guard_ns: int | None, parting: Emission | None) -> None:
        """Expect the loop to call this again by `guard_ns` (None: no limit); `parting` is told where it does not, and
        with the safe call that a person demands."""
        with self._lock:
            waits = self.guard_ns is None and guard_ns is not None
            self.guard_ns, self.parting = guard_ns, parting
        if waits:  # for calls alone until now
            self._bell.put(None)

    def disarm(self) -> None:
        """Expect nothing of the loop until it arms again."""
        self.guard_ns = None

    def execute(self, order: Command) -> Command | None:
        """Act as soon as the world lets it. Gives the order that waited until now, which is dropped."""
        with self._lock:
            replaced = None if self._order is None else self._clear()
            order.demand, self._order = self._demand, order
            order.shut = self.shut or ("paused" if order.asked_ns < self.open_ns else None)
            self._jobs.append(order)
        self._bell.put(None)
        return replaced

    def withdraw(self, tick: int) -> bool:
        """Drop the order of `tick`; False when it does not wait any more."""
        with self._lock:
            return self._order is not None and self._order.tick == tick and self._clear() is not None

    def bar(self, why: str | None) -> None:
        """Why no call may act from now on, nor one that waits or is under way; None: those asked for from now on."""
        with self._lock:
            self.shut = why
            if why is None:
                self.open_ns = time.monotonic_ns()
            for order in (self._acting, self._order):
                if why is not None and order is not None:
                    order.shut = why

    def safe(self, why: str, emission: Emission | None = None) -> Command | None:
        """Bring the safe calls in force, each of them; `emission` is told with the first attempt. Gives the order that
        waited until now, which is dropped."""
        with self._lock:
            cleared = self._clear()
            self._demand += 1
            if self._emission is not None:
                self._jobs.append(self._emission)
            self._overtaken()
            self._attempt, self._due_ns, self._why, self._emission = 0, 0, why, emission
            self._wanted = list(self._safe_calls) or [None]
            self._in_force.clear()
            self.attempting, self.over = True, False
        self._bell.put(None)
        return cleared

    def retry(self) -> bool:
        """A period of the world's time is over: try again what is not in force. False: all is."""
        with self._lock:
            if again := bool(self._wanted):
                self._due_ns, self.attempting = 0, True
                self._bell.put(None)
        return again

    def tell(self, emission: Emission) -> None:
        with self._lock:
            self._jobs.append(emission)
        self._bell.put(None)

    def instruct(self, text: str) -> None:
        """Tell the world what is decided (and judged) by; of several that wait, the newest."""
        with self._lock:
            self._jobs = deque(job for job in self._jobs if not isinstance(job, str))
            self._jobs.append(text)
        self._bell.put(None)

    @property
    def pending(self) -> bool:
        """Whether a safe call was demanded that is not in force yet."""
        return self.attempting or bool(self._wanted)

    def wait_safe(self, timeout_s: float) -> bool:
        """Whether what `safe` demanded is in force, or the world `over`, within the time."""
        return self._in_force.wait(timeout_s)

    def close(self) -> None:
        """Nothing is begun any more but what is wanted and was not tried: an interrupt comes here before it, and the
        world is closed next. A world that blocks is left to the process's end: the thread is a daemon."""
        self._closed = True
        self._bell.put(None)
        if self.thread is not None:
            self.thread.join(JOIN_S if self._in_force.is_set() else JOIN_UNTRIED_S)

    def _clear(self) -> Command | None:
        cleared, self._order = self._order, None
        if cleared is not None:
            self._jobs.remove(cleared)
        return cleared

    # -- on the actuator's thread -------------------------------------------------------------------------------------

    def _work(self) -> None:
        # What is wanted at the end is tried once, also where nobody waits for it.
        while not self._closed or (self._wanted and not self._attempt):
            with self._lock:
                job, wait_s = self._next()
            if isinstance(job, Command):
                self._perform(job)
            elif job is not None:
                self._tell(job)
            elif wait_s is not None and wait_s <= 0:
                self._bring_in_force()
            else:
                if (guard_ns := self.guard_ns) is not None:
                    left_s = (guard_ns - time.monotonic_ns()) / 1e9
                    if left_s <= 0:
                        self._take_over()
                        continue
                    wait_s = left_s if wait_s is None else min(wait_s, left_s)
                with suppress(Empty):
                    self._bell.get(timeout=wait_s)

    def _next(self) -> tuple[Command | Emission | str | None, float | None]:
        """What is first: tellings of ticks before it, then the safe call, then the rest, unless a safe call is under
        way. Where there is nothing: how long until the safe call is due (None: it is not wanted)."""
        front = self._jobs[0] if self._jobs else None
        wait_s = None
        if self._due_ns is not None and not isinstance(front, Emission):
            wait_s = (self._due_ns - time.monotonic_ns()) / 1e9
            if wait_s <= 0:
                return None, wait_s
        if self._under_way and not isinstance(front, Emission):
            return None, wait_s
        if front is not None:
            self._jobs.popleft()
            if front is self._order:
                self._acting, self._order = self._order, None
        return front, wait_s

    def _take_over(self) -> None:
        """The loop did not come back in time: nobody else will bring the safe calls in force."""
        now, self.guard_ns = time.monotonic_ns(), None
        if (cleared := self.safe("loop", self.parting)) is not None:
            self._post(Completion(cleared.tick, "too_late", now, now, False))

    def _perform(self, order: Command) -> None:
        if self._unstepped:
            self._look_again()
        self.doings.append(doing := [began := time.monotonic_ns(), 0])
        effect: Effect | Literal["failed"] = "failed"
        fault = None
        try:
            effect = self._act(order.call, order)
            if effect == "acted" and order.fresh is not None:
                with self._lock:  # a world elsewhere is told of no call after a stop
                    effect = effect if order.shut is None else "refused"
                    if effect == "acted":
                        self._emit(order.fresh)
        except BaseException as error:  # also SystemExit: a tool must not end the one thread that can stop it
            effect, fault = "failed", error
        if effect == "epoch_over" and order.void is not None:
            self._tell(order.void)
        doing[1] = ended = time.monotonic_ns()
        with self._lock:
            stands = order.demand == self._demand
            if effect == "acted" and stands and self._wanted:
                self._overtaken(order.call.name)
                self._wanted = [call for call in self._wanted if call and call.name != order.call.name]
                if not self._wanted:
                    self._due_ns = self._emission = None
        self.effects.append(Completion(order.tick, effect, began, ended, stands, fault))
        self._wake()

    def _bring_in_force(self) -> None:
        """One attempt at each safe call that is not in force, nor under way."""
        self.doings.append([began := time.monotonic_ns(), 0])
        fault = None
        with self._lock:
            demand, why, emission = self._demand, self._why, self._emission
            self._emission, self._due_ns = None, None
            begun = [call for call in self._wanted if call not in self._under_way]
            self._attempt = attempt = self._attempt + any(id(call) not in self._unstepped for call in begun)
            self._under_way += [None, *begun]
        try:
            if emission is not None:
                self._emit(emission)
        except BaseException as error:
            fault = error
        patience_s = PATIENCE_LOCKSTEP_S if self._retry_ns is None else PATIENCE_S
        for call in begun:
            attempted = partial(self._try, call, demand, why, attempt, fault)
            if not (len(self._safe_calls) > 1 and beside("safe-call", attempted, patience_s)):
                attempted()
        with self._lock:
            if fault is not None and demand == self._demand:
                self._emission = emission  # it is told again, with the next attempt
            if self._wanted and self._due_ns is None and (self._retry_ns is not None or why == "exit"):
                self._due_ns = began + (self._retry_ns or EXIT_RETRY_NS)
            self._ended(None)
        self._wake()

    def _try(self, call: Call | None, demand: int, why: str, attempt: int, fault: BaseException | None) -> None:
        effect: Effect = "acted"
        acted = self._unstepped.get(id(call))
        stepped: bool | None = True
        try:
            if call is not None and acted is None:
                effect = self._act(Call(call.name, self._tools.convert(call)))
            if call is not None and effect == "acted" and self._stepping is not None:
                acted = acted or (time.monotonic_ns(), attempt)
                stepped, attempt = self._stepping.settle(acted[0]), acted[1]
        except BaseException as error:  # it is tried again
            fault = error
        waits = acted is not None and fault is None and stepped is False
        with self._lock:
            current = demand == self._demand
            if current:
                self._unstepped.pop(id(call), None)
            if not current:
                self._due_ns = 0  # it was demanded anew meanwhile
            elif waits:
                self._unstepped[id(call)] = cast(tuple[int, int], acted)
            elif fault is None:
                self._wanted = [other for other in self._wanted if other is not call]
                self.over |= effect != "acted" or stepped is None
            if not (current and waits):
                taken, over = effect == "acted", fault is None and (effect != "acted" or stepped is None)
                in_force = current and not self._wanted and not self.over
                self.effects.append(SafeAttempt(call, why, attempt, time.monotonic_ns(), in_force, taken, fault, over))
            self._ended(call)
        self._wake()
        self._bell.put(None)

    def _look_again(self) -> None:
        """Whether the world has stepped by now with the safe calls that wait for that."""
        with self._lock:
            demand, why = self._demand, self._why
            waiting = [call for call in self._wanted if id(call) in self._unstepped]
            self._under_way += waiting
        self.doings.append([time.monotonic_ns(), 0])
        for call in waiting:
            self._try(call, demand, why, 0, None)

    def _overtaken(self, tool: str | None = None) -> None:
        """A newer call (of its own tool, where there are several), or demand, comes before their step; locked."""
        any_tool = tool is None or len(self._safe_calls) == 1
        gone = [c for c in self._wanted if c and id(c) in self._unstepped and (any_tool or c.name == tool)]
        for call in gone:
            acted_ns, attempt = self._unstepped.pop(id(call))
            self.effects.append(SafeAttempt(call, self._why, attempt, acted_ns, False, True))
        self._wanted = [call for call in self._wanted if not any(call is one for one in gone)]

    def _ended(self, call: Call | None) -> None:
        """A safe call ended, or a round of them (None); locked."""
        self._under_way.remove(call)
        self.doings[-1][1] = 0 if self._under_way else time.monotonic_ns()
        if not self._under_way and self._due_ns != 0:
            self.attempting = False
            if not self._wanted:
                self._in_force.set()

    def _tell(self, what: Emission | str) -> None:
        try:
            self._env.instruct(what) if isinstance(what, str) else self._emit(what)
        except BaseException as error:
            self._post(Fault("instruct" if isinstance(what, str) else "emit", error))

    def _act(self, call: Call, order: Command | None = None) -> Effect:
        """In the environment, or by the tool's own function where it has none for it. Without an order: a safe call."""
        if call.name in self._bindings:
            epoch, not_after_ns = (None, None) if order is None else (order.epoch, order.not_after_ns)
            return self._env.execute(call, epoch, not_after_ns, order)
        if order is not None:
            if self._env.finished or ((seen := self._env.latest()) and seen.epoch != order.epoch):
                return "epoch_over"
            if order.not_after_ns is not None and time.monotonic_ns() > order.not_after_ns:
                return "too_late"
            if order.shut is not None:
                return "refused"
        carry_out(self._functions[call.name], **call.arguments)
        return "acted"

    def _post(self, effect: Completion | SafeAttempt | Fault) -> None:
        self.effects.append(effect)
        self._wake()
