"""A connected game: its player, and the control loop, record and report of what it asked."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.agents.agent import Fallback
from rtcontrol.gateway.neuro.actions import OfferedTools
from rtcontrol.gateway.neuro.options import NeuroOptions
from rtcontrol.gateway.neuro.player import GamePlayer
from rtcontrol.gateway.neuro.world import GameLook, QuestionWorld
from rtcontrol.gateway.source import source, trained
from rtcontrol.hosts.protocol import Host
from rtcontrol.hosts.tool_set_host import ToolOffer, ToolSetHost
from rtcontrol.loop.clock import DemandClock
from rtcontrol.loop.config import RunConfig, instruction_text, size
from rtcontrol.loop.loop import ControlLoop, LoopOptions
from rtcontrol.loop.realtime import NoCollector
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.serve.limits import TokenBucket
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.serve.stats import Run, write_report
from rtcontrol.telemetry.recorder import Recorder

log = logging.getLogger("rtcontrol.gateway")
END_S = 10.0
STOP = "stop"  # what ended the control loop where a person did


class GameSession:
    """`player` takes the game's messages, on the event loop's thread. The control loop begins with the first question,
    on a thread of its own. `tool_sets` says how many sets of tools may stay open. A guest of the server's
    (`Guest`): people may look on and say something."""

    def __init__(
        self,
        number: int,
        game: str,
        admission: SessionManager,
        options: NeuroOptions,
        model: str | None,
        send: Callable[[dict[str, Any]], None],
        tool_sets: Callable[[], int],
    ) -> None:
        self.id = f"neuro-{number:04d}"
        self.shown_name = game
        self.state = "live"
        self.loop: ControlLoop | None = None
        self.counting = False
        self._admission, self._model = admission, model
        self._instruction = options.instruction
        self._longest_ms = options.longest_ms
        self._lines = TokenBucket(1.0, 10.0)
        self._warned: set[str] = set()
        self._ending = threading.Lock()
        self.why: str | None = None  # it is over
        self._over = False  # the control loop is
        self._thread: threading.Thread | None = None
        self._tools: OfferedTools | None = None
        self._host = ToolSetHost(self.id, self._open, self._say, tool_sets)
        self.player = GamePlayer(game, options, send, self._ask, self._result, self._prepare, self._say)
        self._world = QuestionWorld("neuro", self.player.decided, self._offered, self._check)

    # -- for those who look on (`gateway.view`) -----------------------------------------------------------------------

    def say(self, said: str, by: str, k: int | None = None, instruction: str | None = None) -> str:
        """pause: forced actions get the safe choice; stop: the game is told, and nothing is answered any more."""
        if self.loop is None:
            return "the game has asked nothing yet"
        return self.loop.operator.say(said, by, k, instruction)

    def instruct(self, text: str) -> None:
        """Raises UserError for one that is too long."""
        self._instruction = instruction_text(text)
        if self.loop is not None:
            self.loop.instruct(self._instruction)

    # -- the end ------------------------------------------------------------------------------------------------------

    def stop(self, why: str) -> None:
        """The game is gone, or the server ends; from the event loop's thread."""
        self.player.end()
        with self._ending:
            self.why = self.why or why
            if self.loop is not None:
                self.loop.stop(why)

    def close(self) -> None:
        """Waits for the report; from any thread, after `stop`."""
        if self._thread is not None:
            self._thread.join(END_S)
        else:
            self._host.close()
        self.state = "over"

    # -- the player's -------------------------------------------------------------------------------------------------

    def _ask(self, number: int, look: GameLook, deadline_ns: int) -> None:
        try:
            if self.loop is None:
                self._begin(look.offer)
        except UserError as error:
            self._say(str(error))
            self.player.decided(-1, number, None)
        else:
            self._world.ask(number, look, deadline_ns)
            if self._over:
                self.player.decided(-1, number, None)

    def _offered(self, offer: ToolOffer) -> bool:
        assert self._tools is not None, "the loop has begun"
        try:
            self._tools.offer(offer.key, offer.tools)
        except UserError as error:
            self._say(str(error))
            return False
        return True

    def _check(self, call: Call) -> None:
        assert self._tools is not None, "the loop has begun"
        self._tools.validate(call)

    def _result(self, tick: int, call: Call, success: bool, message: str) -> None:
        if tick >= 0:
            self._world.result(tick, call, success, message)

    def _prepare(self, offer: ToolOffer) -> None:
        self._host.prepare(offer)

    def _open(self, name: str, offer: ToolOffer) -> Host:
        options = self._admission.options
        told = options.value_tokens, offer.allow_null, options.arguments
        with self._admission.opening:
            made = self._admission.pool.open(name, source(self._model, options.engine, offer.tools, *told))
        _, warning = trained(self._model, tool_schemas(offer.tools))
        if warning is not None and warning not in self._warned:
            self._warned.add(warning)
            self._say(warning)
        return made

    def _begin(self, offer: ToolOffer) -> None:
        """Raises UserError where nothing can be recorded."""
        tools = OfferedTools(offer.tools)
        options = self._admission.options
        out = options.out / self.id
        config = RunConfig(
            env="neuro",
            out=out,
            hz=1e3 / self._longest_ms,
            deadline_ms=self._longest_ms,
            max_age_ms=10 * self._longest_ms,
            instruction=self._instruction,
            agent=self.shown_name,
            model=self._model or "the actions' own",
            engine=options.engine,
            value_tokens=options.value_tokens,
            arguments=options.arguments,
            host=options.host,
            on_miss="safe",
            hold_ms=0.0,
            record_observations=options.record_observations,
            record_max=options.record_max,
            warmup=0,
            first_observation_s=float("inf"),
        )
        agent = Agent(
            name=self.shown_name,
            description="A game of the Neuro API.",
            tools=tools,
            observe=lambda data: str(getattr(data, "text", "")),
            instruction=self._instruction,
            fallback=Fallback(hold_ms=0.0),
            model="",
        )
        record = out / "record.mcap"
        header = config.header(0.0, agent) | {"clock": "demand"}  # the game's
        recorder = Recorder(record, header, provisional=True, tell=self._say, most=size(config.record_max))
        clock = DemandClock(self._world.arrival)
        shared = LoopOptions(None, self._say, clock, self._admission.watch, NoCollector())
        loop = ControlLoop(config, agent, self._world, self._host, recorder, shared)
        with self._ending:
            self.loop, self.counting, self._tools = loop, True, tools
            if self.why is not None:
                loop.stop(self.why)
        run = Run(loop, recorder, record)
        self._thread = threading.Thread(target=self._work, args=(run,), name=self.id, daemon=True)
        self._thread.start()

    def _work(self, run: Run[ControlLoop]) -> None:
        try:
            run.loop.run()
        except UserError as error:
            self._say(str(error))
        except BaseException:
            log.exception("%s failed", self.id)
        finally:
            self._over = True
            if run.loop.ended_by == STOP:
                self.player.halt()
            run.recorder.discard()
            run.recorder.close()
            self._admission.counted(self)
            if failed := write_report(run, self._wire):
                self._admission.say(f"{self.id}: {failed}")

    def _wire(self) -> dict[str, Any]:
        return {"client": {"name": self.shown_name, "protocol": "neuro"}, "session": self.id, **self.player.counts}

    def _say(self, line: str) -> None:
        # What a game does wrong in each turn must not fill the log.
        if self._lines.take():
            self._admission.say(f"{self.id}: {line}")


def next_number(out: Path) -> int:
    """Numbers go on after those that lie in the folder: a restarted server overwrites no record."""
    return 1 + max((int(n) for p in out.glob("neuro-*") if (n := p.name[6:]).isdigit()), default=0)


def end_all(games: list[GameSession]) -> None:
    """Their reports are written, each within its time."""
    give_up = time.monotonic() + END_S
    for game in games:
        if time.monotonic() < give_up:
            game.close()
