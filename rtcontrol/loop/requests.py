"""What the decider is asked: the agent's text of an observation, the instruction, and the last calls."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.agents.goal_tools import GoalTools
from rtcontrol.envs.base import Acknowledging, Environment, Observation
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.loop.call_in_force import CallInForce
from rtcontrol.loop.config import instruction_text, plain_text
from rtcontrol.records import Tick
from rtcontrol.telemetry.encoder import plain

# People are shown this much of an instruction.
ECHO = 120
# A new instruction whose decisions are unsure gives way after so many, and at once where it has unknown words.
TRIALS = 3
# Goals that people are shown when an instruction is not understood.
EXAMPLES = 4
# One is taken a tick; of more than this between two ticks, the oldest give way.
MAX_WAITING = 16


class Instructions:
    """`now` is in force, `proven` the last one that something was decided by; `put` may be called from any thread, the
    rest from the loop's. `tell` the world of it; `t_s` gives the run's time. The owner may set `accepted` (text), which
    is told of a new one that something was decided by, and `refused` (text, error), of what gives way. `goals`: where
    the agent has some, a new instruction whose decisions must not act is not understood, and gives way, too."""

    def __init__(
        self,
        first: str,
        tell: Callable[[str], None],
        emit: Callable[[dict[str, Any]], None],
        notify: Callable[[str], None],
        t_s: Callable[[int], float],
        goals: GoalTools | None = None,
    ) -> None:
        self.now = plain_text(first)
        self.goals = goals
        self.refusal: tuple[str, str] | None = None  # the last instruction where it was not taken, and why
        self._unsure = 0  # decisions by the new instruction
        self._tell, self._emit, self._notify, self._t_s = tell, emit, notify, t_s
        self.accepted: Callable[[str], None] = lambda text: None
        self.refused: Callable[[str, str], None] = lambda text, error: None
        self.proven = self.now
        self.waiting: deque[str] = deque(maxlen=MAX_WAITING)

    def begin(self, text: str) -> None:
        """What the run begins with."""
        self.now = self.proven = text

    def put(self, text: str) -> None:
        """Raises UserError for one that is too long."""
        self.waiting.append(instruction_text(text))

    def change(self) -> None:
        """Take the next one that waits, if any: from now on it is decided and judged by."""
        if not self.waiting:
            return
        self.now, self.refusal, self._unsure = self.waiting.popleft(), None, 0
        self._tell(self.now)
        self._emit({"instruction": self.now, "t_s": self._t_s(time.monotonic_ns())})
        self._notify(f"instruction: {echo(self.now)}")

    def judge(self, tick: Tick, reply: DecisionReply, unsure: bool = False) -> None:
        """A new instruction that the decider cannot take (it does not fit, say), or does not understand, gives way to
        the last good one. `unsure`: the decision must not act."""
        if tick.request.instruction != self.now:
            return
        if self.now == self.proven:
            return
        decision = reply.decision
        if decision is None and reply.mistake is not None:
            said = f"instruction refused: {echo(self.now)} ({reply.mistake[0]}) It goes on by the one before."
            self._give_way(said, reply.error or reply.mistake[0])
            return
        goals = self.goals
        if (decision is None or unsure) and goals is not None and goals.recognise(self.now) is None:
            self._doubt(goals, decision is not None and bool(decision.unknown))
            return
        if decision is None:
            return
        self.accepted(self.now)
        self.proven = self.now

    def _doubt(self, goals: GoalTools, unknown: bool) -> None:
        """A decision by the new instruction failed or must not act; `unknown`: some of its words were never taught."""
        self._unsure += 1
        if unknown or self._unsure >= TRIALS:
            said = f'"{echo(self.now)}" is not understood, continuing with "{echo(self.proven)}".'
            said = f"{said} You can say: {'; '.join(goals.examples(EXAMPLES))}."
            self._give_way(said, said)

    def _give_way(self, said: str, error: str) -> None:
        refused, self.now = self.now, self.proven
        self.refusal = refused, said
        self._tell(self.now)
        t_s = self._t_s(time.monotonic_ns())
        self._emit({"instruction": self.now, "t_s": t_s, "refused": echo(refused)})
        self._notify(said)
        self.refused(refused, error)


def echo(text: str) -> str:
    """An instruction as people are shown it: its beginning."""
    return text if len(text) <= ECHO else text[: ECHO - 3] + "..."


# Of these nobody changes a value.
PLAIN = frozenset({bool, int, float, str, type(None)})


class Requests:
    """`history` holds the last calls that acted, as text: by the loop's word, or by the world's own where that
    `acknowledges`; `steady` is the call in force, where there is hysteresis."""

    def __init__(
        self, agent: Agent, env: Environment, instructions: Instructions, steady: CallInForce | None = None
    ) -> None:
        self.steady = steady
        self.history: deque[str] = deque(maxlen=agent.history)
        self.world = env if isinstance(env, Acknowledging) else None
        self.acknowledges = False
        self._agent, self._instructions = agent, instructions

    def make(self, k: int, seen: Observation, within_ns: int = 0) -> DecisionRequest:
        """The request of tick `k`, which somebody waits for so long. Raises whatever the agent's `observe` raises."""
        if self.world is not None and (done := self.world.acknowledged()) is not None:
            self.acknowledges = True
            self.history.extend([call.text() for call in done])
        text = self._agent.observe(seen.data)
        text = text if isinstance(text, str) and text.isascii() else plain_text(text)
        told = self._instructions.now, tuple(self.history), seen.data
        standing = None if self.steady is None else self.steady.standing(seen.epoch, told[0])
        captured_ns = seen.t_capture_ns
        return DecisionRequest(
            k, seen.epoch, text, *told, within_ns=within_ns, seq=seen.seq, captured_ns=captured_ns, standing=standing
        )


def row(request: DecisionRequest, seen: Observation, t_s: float) -> dict[str, Any]:
    """The event that keeps what was asked; `t_s` is when it was captured."""
    data = seen.data
    if not isinstance(data, dict) or not PLAIN.issuperset(map(type, data.values())):
        data = plain(data)  # now: the world may change it, and a large array would wait in memory
    elif data:
        data = data.copy()
    asked: dict[str, Any] = {"observation": request.observation, "instruction": request.instruction}
    asked["history"] = request.history
    if request.standing is not None:
        asked["in_force"] = {"call": request.standing.to_dict()}
    return {"k": request.tick, "t_s": t_s, "seq": seen.seq, "epoch": seen.epoch, **asked, "data": data}
