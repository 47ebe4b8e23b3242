"""One game's player: the game's questions, one after the other, decided by a control loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.gateway.neuro import messages
from rtcontrol.gateway.neuro.actions import GameActions
from rtcontrol.gateway.neuro.messages import (
    ActionResult,
    ForceActions,
    GameContext,
    RegisterActions,
    ShutdownReady,
    Startup,
    UnregisterActions,
)
from rtcontrol.gateway.neuro.options import NeuroOptions
from rtcontrol.gateway.neuro.world import GameLook
from rtcontrol.hosts.tool_set_host import ToolOffer
from rtcontrol.models.call import Call

QUEUED = 16  # forces that wait for their turn
REMARKS, REMARK_CHARACTERS = 20, 8_000  # of what the game told lately
MODEL_TRIES = 3  # a force that fails is decided so often; then the safe choices are taken in turn
MOST_TRIES = 12
RESULT_S = 30.0  # a game that says nothing for so long of an action is asked no more about it
GRACE_S = 0.1  # past its deadline a question is answered here, where the loop does not
EXPECT_S = 1.0  # so long forces wait for actions that the game was asked to register again
SETTLE_S = 0.2  # of the registered actions: then they are made ready


@dataclass
class GameQuestion:
    """A force, or (None) a chance to do something unforced. `choices` are what is left to try where the model is not
    asked any more; `look` is what the control loop was given, and `told` the action that left, by its id."""

    number: int
    force: ForceActions | None
    tries: int = 1
    deadline_ns: int = 0
    look: GameLook | None = None
    told: str | None = None
    tick: int | None = None
    call: Call | None = None
    answered: bool = False
    choices: list[str] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None


class GamePlayer:
    """On the event loop's thread, but for `decided`. `send` tells the game, `ask` the control loop; `result` tells it
    what the game made of a call; `prepare` makes tools ready; `say` is for people and the record."""

    def __init__(
        self,
        game: str,
        options: NeuroOptions,
        send: Callable[[dict[str, Any]], None],
        ask: Callable[[int, GameLook, int], None],
        result: Callable[[int, Call, bool, str], None],
        prepare: Callable[[ToolOffer], None],
        say: Callable[[str], None],
    ) -> None:
        self.game, self._options = game, options
        self._send, self._ask, self._result, self._prepare, self._say = send, ask, result, prepare, say
        self.actions = GameActions(options.safe)
        self.counts = {"forced": 0, "decided": 0, "safe": 0, "refused": 0, "withdrawn": 0, "unforced": 0}
        self.ready_to_end = asyncio.Event()  # the game has saved what there is to save
        self._loop = asyncio.get_running_loop()
        self._open: GameQuestion | None = None
        self._forces: deque[ForceActions] = deque()
        self._remarks: deque[str] = deque(maxlen=REMARKS)
        self._numbers, self._ids = itertools.count(1), itertools.count(1)
        self._mark = secrets.token_hex(4)  # a result from before a connection broke is of no action of this one's
        self._settling: asyncio.TimerHandle | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._expecting: asyncio.TimerHandle | None = None
        self._ended = False
        if options.hz:
            self._beat = self._loop.call_later(1 / options.hz, self._may_act)

    # -- from the game ------------------------------------------------------------------------------------------------

    def hear(self, message: Any) -> None:
        """One of `messages.GameMessage`."""
        if self._ended and not isinstance(message, ShutdownReady):
            self._unheard(message)
        elif isinstance(message, ForceActions):
            self._force(message)
        elif isinstance(message, ActionResult):
            self._heard_result(message)
        elif isinstance(message, RegisterActions):
            for line in self.actions.register(message.actions):
                self._say(line)
            self._settle()
            self._next()
        elif isinstance(message, UnregisterActions):
            self.actions.unregister(message.action_names)
            self._withdrawn()
        elif isinstance(message, GameContext):
            self._remark(message.message)
            if not message.silent and self._open is None:
                self._act()
        elif isinstance(message, Startup):
            self._restart()
        elif isinstance(message, ShutdownReady):
            self.ready_to_end.set()

    def expect_actions(self) -> None:
        """The game was asked to register its actions again: what it forces meanwhile waits for them."""
        self._expecting = self._loop.call_later(EXPECT_S, self._expected)

    def _expected(self) -> None:
        self._expecting = None
        self._next()

    def end(self) -> None:
        """The game is gone, or the server ends: what is open stays without an answer."""
        self._ended = True
        self._leave_all()
        for timer in (self._settling, self._beat, self._expecting):
            if timer is not None:
                timer.cancel()

    def halt(self) -> None:
        """A person has stopped the player, for good; from any thread."""
        self._on_its_thread(self._halt)

    # -- from the control loop ----------------------------------------------------------------------------------------

    def decided(self, tick: int, number: int, call: Call | None) -> None:
        """What became of a question, from any thread."""
        self._on_its_thread(self._answer, number, call, tick)

    def _on_its_thread(self, does: Callable[..., None], *told: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: the server has ended
            self._loop.call_soon_threadsafe(does, *told)

    # -- questions ----------------------------------------------------------------------------------------------------

    def _force(self, force: ForceActions) -> None:
        self.counts["forced"] += 1
        if force.priority not in messages.PRIORITIES:
            self._say(f"actions/force: there is no priority {force.priority[:40]!r}; it is taken as low")
            force.priority = "low"
        if messages.MOST_SAID in (len(force.state), len(force.query)):
            self._say(f"actions/force: of its texts the first {messages.MOST_SAID} characters are read")
        if self._expecting is None and not self.actions.there(force.action_names):
            self.counts["withdrawn"] += 1
            names = ", ".join(force.action_names)[:200] or "none"
            self._say(f"actions/force names no action that is registered ({names}): nothing can be chosen")
        elif len(self._forces) >= QUEUED:
            self.counts["withdrawn"] += 1
            self._say(f"{QUEUED} forces wait already: this one is dropped")
        else:
            self._forces.append(force)
            if self._open is not None and self._open.force is None and self._open.told is None:
                self._close()  # nobody forced it: it gives way
            self._next()

    def _next(self) -> None:
        while self._open is None and self._forces and not self._ended:
            if self._expecting is not None and not self.actions.there(self._forces[0].action_names):
                return
            force = self._forces.popleft()
            if self.actions.there(force.action_names):
                self._put(GameQuestion(next(self._numbers), force))
            else:
                self.counts["withdrawn"] += 1
                self._say("a force that waited is dropped: its actions are not registered")

    def _may_act(self) -> None:
        self._beat = self._loop.call_later(1 / self._options.hz, self._may_act)
        if self._open is None and not self._forces:
            self._act()

    def _act(self) -> None:
        """Something unforced, or nothing."""
        if self.actions.definitions(self.actions.names) and not self._ended:
            self.counts["unforced"] += 1
            self._put(GameQuestion(next(self._numbers), None))

    def _put(self, question: GameQuestion) -> None:
        force = question.force
        priority = "low" if force is None else force.priority
        within_s = self._options.deadlines[priority] / 1e3
        question.deadline_ns = time.monotonic_ns() + round(within_s * 1e9)
        self._open = question
        names = self.actions.there(self.actions.names if force is None else force.action_names)
        offer = ToolOffer(self.actions.definitions(names), allow_null=force is None)
        if not offer.tools:
            self._answer(question.number, None, None)
            return
        question.timer = self._loop.call_later(within_s + GRACE_S, self._answer, question.number, None, None)
        state, query = ("", "") if force is None else (force.state, force.query)
        text = "\n".join(part for part in (*self._remarks, state, query) if part)
        data: dict[str, Any] = {"query": query, "state": state, "remarks": list(self._remarks), "actions": names}
        data |= {"forced": force is not None, "priority": priority, "tries": question.tries}
        question.look = GameLook.of(data, text, offer)
        self._ask(question.number, question.look, question.deadline_ns)

    def _answer(self, number: int, call: Call | None, tick: int | None) -> None:
        """The call of the question of this number, or the safe choice; the first answer counts."""
        question = self._open
        if question is None or question.number != number or question.answered:
            return
        question.answered, question.tick = True, tick
        if question.timer is not None:
            question.timer.cancel()
        if tick is None and question.look is not None:
            question.look.over = True  # what the loop decides later is not told
        if call is not None and call.name in self.actions:
            self.counts["decided"] += 1
            self._tell(question, call)
        elif question.force is None:
            self._close()
            self._next()
        else:
            self._safe(question)

    def _safe(self, question: GameQuestion) -> None:
        assert question.force is not None, "what nobody forces has no safe choice"
        if not question.choices:
            question.choices = self.actions.safe_choices(self.actions.there(question.force.action_names))
        question.choices = self.actions.there(question.choices)
        if question.choices:
            self.counts["safe"] += 1
            self._tell(question, self.actions.plainest(question.choices.pop(0)))
        else:
            self._drop("its actions were unregistered before one was chosen")

    def _tell(self, question: GameQuestion, call: Call) -> None:
        question.call, question.told = call, f"{self._mark}-{next(self._ids)}"
        self._send(messages.action(question.told, call.name, self.actions.arguments(call)))
        question.timer = self._loop.call_later(RESULT_S, self._silent, question.number)

    def _heard_result(self, message: ActionResult) -> None:
        question = self._open
        if question is None or question.told != message.id or question.call is None:
            self._say(f"action/result names {message.id[:80]!r}, which waits for none")
            return
        if message.message:
            self._remark(f"{question.call.text()}: {message.message}")
        if question.tick is not None:
            self._result(question.tick, question.call, message.success, message.message or "it was refused")
        if message.success or question.force is None:
            self._close()
        else:
            self.counts["refused"] += 1
            self._again(question, question.force)
        self._next()

    def _again(self, question: GameQuestion, force: ForceActions) -> None:
        """A forced action that failed: the force is tried again at once, as the API says."""
        self._close()
        again = GameQuestion(next(self._numbers), force, question.tries + 1, choices=question.choices)
        if not self.actions.there(force.action_names):
            # neuro-pokemon-platinum#24: a game unregisters the actions of a turn before it tells that one failed.
            self.counts["withdrawn"] += 1
            self._say("a forced action failed, and its actions are unregistered: the force is over")
        elif again.tries > MOST_TRIES:
            self.counts["withdrawn"] += 1
            self._say(f"the game refused {MOST_TRIES} answers to one force: it is given up")
        elif again.tries <= MODEL_TRIES:
            self._put(again)
        else:
            self._open, again.answered = again, True
            self._safe(again)

    def _silent(self, number: int) -> None:
        question = self._open
        if question is not None and question.number == number:
            self._drop(f"the game did not tell within {RESULT_S:g} s what became of {question.told}")

    def _withdrawn(self) -> None:
        """neuro-sdk#14: actions may be unregistered while one of them is forced."""
        question = self._open
        if question is None or question.answered or question.force is None:
            return
        if not self.actions.there(question.force.action_names):
            self._drop("its actions were unregistered before one was chosen")

    def _drop(self, why: str) -> None:
        self.counts["withdrawn"] += 1
        self._say(f"a question is over: {why}")
        self._close()
        self._next()

    def _close(self) -> None:
        if self._open is not None:
            if self._open.timer is not None:
                self._open.timer.cancel()
            if self._open.look is not None:
                self._open.look.over = True
        self._open = None

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _halt(self) -> None:
        if not self._ended:
            self.end()
            self._send(messages.SHUT_DOWN)
            self._say("stopped by a person: the game is answered nothing until it connects again")

    def _unheard(self, message: Any) -> None:
        if isinstance(message, ForceActions):
            self.counts["forced"] += 1
            self.counts["withdrawn"] += 1

    def _restart(self) -> None:
        """The game begins (again): the API clears all that was registered."""
        self.actions.clear()
        self._remarks.clear()
        self._leave_all()

    def _leave_all(self) -> None:
        question = self._open
        waits = question is not None and question.force is not None and question.told is None
        self.counts["withdrawn"] += len(self._forces) + waits
        self._forces.clear()
        self._close()

    def _remark(self, text: str) -> None:
        if text.strip():
            self._remarks.append(text.strip()[:REMARK_CHARACTERS])
        while sum(map(len, self._remarks)) > REMARK_CHARACTERS:
            self._remarks.popleft()

    def _settle(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
        self._settling = self._loop.call_later(SETTLE_S, self._settled)

    def _settled(self) -> None:
        if self._open is None and (tools := self.actions.definitions(self.actions.names)):
            self._prepare(ToolOffer(tools, allow_null=False))
