"""A simulated actuator worker and world with a fake clock, which execute one action at a time."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rtcontrol.envs.base import Emission
from rtcontrol.loop.actuator_core import Action, ActuatorCore, Attempt, AttemptResult
from rtcontrol.models.call import Call
from rtcontrol.records import Command, Completion, EnvironmentFault, Instruct, SafeAttempt

MS = 1_000_000
MOVE, CLOSE = Call("move", {"speed": 1}), Call("grip", {"closed": 1})
STOP, OPEN, PARK = Call("move", {"speed": 0}), Call("grip", {"closed": 0}), Call("base", {"go": 0})
CALLS = {"move": MOVE, "close": CLOSE, "stop": STOP, "open": OPEN, "park": PARK}
NAMES = {call.text(): name for name, call in CALLS.items()}


def emission(tick: int, status: Any = "safe") -> Emission:
    return Emission(tick, 1, 1, 0, status)


class Worker:
    """A worker that drives an actuator core, with scripted results.

    `scripts` has the next results by name (`move`, `stop`, `emit`, `instruct`): `ok` (the default), `raise`, `hang`,
    `over` or `late`; for a safe call also `wait` (the world has not stepped yet) and `never` (it does not step again).
    `log` has the calls and messages that reached the world, with the time in ms, and the result if it is not `ok`."""

    def __init__(self, *safe_calls: Call, retry_ms: float | None = 50, steps: bool = False) -> None:
        self.core = ActuatorCore(safe_calls, None if retry_ms is None else round(retry_ms * MS))
        self.now_ns, self.steps = 0, steps
        self.scripts: dict[str, deque[str]] = defaultdict(deque)
        self.log: list[tuple[float, str]] = []
        self.blocked: Command | Attempt | None = None  # the action in which the worker hangs
        self.hung: list[Attempt] = []  # attempts that hang on their own threads

    # -- the world ----------------------------------------------------------------------------------------------------

    def script(self, **does: str) -> None:
        """Append results for the next calls by name: after `stop="raise hang"`, one `stop` raises, the next hangs."""
        for name, words in does.items():
            self.scripts[name].extend(words.split())

    def does(self, name: str) -> str:
        return self.scripts[name].popleft() if self.scripts[name] else "ok"

    def note(self, what: str, how: str = "ok") -> None:
        self.log.append((self.now_ns / MS, what if how == "ok" else f"{what}:{how}"))

    # -- the worker ---------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Execute all actions that are due now."""
        while self.blocked is None and (action := self.core.next_action(self.now_ns)) is not None:
            self.do(action)
        wake_ns = self.core.wake_ns
        assert self.blocked or wake_ns is None or wake_ns > self.now_ns or self.core.closed, "it would wake at once"

    def do(self, action: Action) -> None:
        if isinstance(action, Command | Attempt):
            self.begin(action)
        else:
            name = "instruct" if isinstance(action, Instruct) else "emit"
            how = self.does(name)
            self.note(f"say {action.text}" if isinstance(action, Instruct) else f"emit {action.emission.tick}", how)
            self.core.record_send_result(action, OSError("no radio") if how == "raise" else None)

    def begin(self, action: Command | Attempt) -> None:
        call = action.call if isinstance(action, Command) else action.safe.call
        assert call is not None
        looks = isinstance(action, Attempt) and action.acted_ns is not None
        name = NAMES[call.text()]
        how = self.does(name)
        self.note(f"look {name}" if looks else name, how)
        if how != "hang":
            self.end(action, how)
        elif isinstance(action, Attempt) and action.threaded:
            self.hung.append(action)
        else:
            self.blocked = action

    def end(self, action: Command | Attempt, how: str = "ok") -> None:
        if isinstance(action, Command):
            self.performed(action, how)
        else:
            self.core.record_attempt_result(action, self.result(action, how), self.now_ns)

    def result(self, attempt: Attempt, how: str) -> AttemptResult:
        if how == "raise":
            return AttemptResult(error=OSError("no drive"))
        if how == "over":
            return AttemptResult("epoch_over")
        acted_ns = self.now_ns if attempt.acted_ns is None else attempt.acted_ns
        stepped = {"wait": False, "never": None}.get(how, True) if self.steps else True
        return AttemptResult("acted", acted_ns, stepped)

    def performed(self, command: Command, how: str) -> None:
        error: BaseException | None = OSError("no drive") if how == "raise" else None
        effect: Any = {"ok": "acted", "raise": "failed", "over": "epoch_over", "late": "too_late"}[how]
        if (emit := self.core.call_emission(command, effect)) is not None:
            told = self.does("emit")
            self.note(f"emit {emit.emission.tick}", told)
            error = OSError("no radio") if told == "raise" else None
        self.core.record_command_result(command, effect, error, self.now_ns)

    def free(self, name: str = "", how: str = "ok") -> None:
        """End a hanging call: the worker's call, or the safe call `name` on its own thread."""
        for attempt in [one for one in self.hung if one.safe.call and NAMES[one.safe.call.text()] == name]:
            self.hung.remove(attempt)
            self.end(attempt, how)
        if not name and self.blocked is not None:
            action, self.blocked = self.blocked, None
            self.end(action, how)
        self.work()

    def at(self, ms: float) -> None:
        """Execute all actions that are due until this time."""
        until_ns = round(ms * MS)
        self.work()
        while self.blocked is None and not self.core.done:
            if (wake_ns := self.core.wake_ns) is None or wake_ns > until_ns:
                break
            self.now_ns = max(self.now_ns, wake_ns)
            self.work()
        self.now_ns = until_ns
        self.work()

    # -- orders, and what came of them --------------------------------------------------------------------------------

    def execute(self, tick: int, call: Call = MOVE, **more: Any) -> Command | None:
        return self.core.execute(Command(tick, call, 1, None, requested_ns=self.now_ns, **more))

    def arm(self, guard_ns: int | None, guard_emission: Emission | None) -> None:
        self.core.guard_ns, self.core.guard_emission = guard_ns, guard_emission

    @contextmanager
    def performing(self, tick: int = 0, **more: Any) -> Iterator[None]:
        """Keep a command hanging within the context, and end the command afterwards."""
        self.script(move="hang")
        self.execute(tick, **more)
        self.work()
        assert self.blocked is not None
        yield
        self.free()

    @property
    def names(self) -> list[str]:
        """Return the names of the calls and messages that reached the world."""
        return [name for _, name in self.log]

    @property
    def attempts(self) -> list[SafeAttempt]:
        return [effect for effect in self.core.effects if isinstance(effect, SafeAttempt)]

    @property
    def completions(self) -> list[tuple[int, str, bool]]:
        """Return tick and effect of each completion, and whether its call is still active."""
        return [(one.tick, one.effect, one.current) for one in self.core.effects if isinstance(one, Completion)]

    @property
    def faults(self) -> list[str]:
        return [one.doing for one in self.core.effects if isinstance(one, EnvironmentFault)]

    @property
    def numbers(self) -> list[tuple[str, int, bool]]:
        """Return call (with `!` if it failed) and number of each attempt, and whether all safe calls are active."""
        return [
            (
                ("-" if one.call is None else NAMES[one.call.text()]) + "!" * (one.error is not None),
                one.attempt,
                one.active,
            )
            for one in self.attempts
        ]
