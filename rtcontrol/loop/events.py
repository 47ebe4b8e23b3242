"""What befell a run apart from its ticks: episodes, the host, safe calls, what the world says, and where it raised."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rtcontrol.envs.base import Acknowledgement, Episode, WorldError
from rtcontrol.hosts.protocol import HostEvent
from rtcontrol.loop.command import Fault, SafeAttempt
from rtcontrol.loop.context import RunContext
from rtcontrol.loop.errors import Errors
from rtcontrol.loop.evidence import EvidenceCollector


class RunEvents:
    """Emits an event for each; `t0_ns` is the first release."""

    def __init__(self, context: RunContext, evidence: EvidenceCollector) -> None:
        self._env, self._emit, self.evidence = context.env, context.emit, evidence
        self._errors = Errors(context.notify)
        self.t0_ns = 0
        self.safe_k = -1  # for whose sake the safe call took over last
        self.noted_episodes = self.noted_events = 0

    def t_s(self, t_ns: int) -> float:
        """Seconds since the first release."""
        return round((t_ns - self.t0_ns) / 1e9, 6)

    def note(self, episodes: Sequence[Episode], events: Sequence[HostEvent]) -> None:
        """Record the episodes that ended and what befell the host since the last time."""
        for episode in episodes[self.noted_episodes :]:
            line = {"seed": episode.seed, "return": round(episode.ret, 4), "success": episode.success}
            self._emit({"episode": {**line, "seconds": round(episode.seconds, 3), "detail": episode.detail}})
            self.noted_episodes += 1
        for event in events[self.noted_events :]:
            what: dict[str, Any] = {"t_s": self.t_s(event.t_ns), "event": event.event}
            what |= {"seconds": round(event.seconds, 3)} | ({"decider": event.decider} if event.decider else {})
            self._emit({"host_event": what})
            self.noted_events += 1
            self.evidence.follow()  # other threads decide after a restart

    def attempted(self, attempt: SafeAttempt) -> None:
        """One try of the safe call: counted as safe only when all of them are in force."""
        call, text = attempt.call, None if attempt.call is None else attempt.call.text()
        if call is not None and attempt.acted and attempt.error is None:
            told = {"called": call.name, "arguments": call.arguments, "k": self.safe_k, "why": "safe"}
            self._emit({**told, "t_s": self.t_s(attempt.ended_ns)})
        line: dict[str, Any] = {"safe": text, "why": attempt.why, "t_s": self.t_s(attempt.ended_ns)}
        line["attempt"], line["in_force"] = attempt.attempt, attempt.in_force
        if attempt.over:
            line["world"] = "over"
        if attempt.error is not None:
            self._errors.put(line, attempt.error, f"safe call {text}, tried again until it is in force: ")
        self._emit(line)

    def acknowledged(self, said: Acknowledgement) -> None:
        """The world's own word of what became of a call that it was told."""
        line: dict[str, Any] = {"ack": said.tick, "status": said.status, "why": said.why, "t_s": self.t_s(said.t_ns)}
        line |= {name: value for name, value in (("result", said.result), ("n", said.n or None)) if value is not None}
        self._errors.put(line, said.error, f"tick {said.tick}: {said.status}: ")
        self._emit(line)

    def fault(self, fault: Fault) -> None:
        """The world raised over what it was told."""
        line: dict[str, Any] = {"fault": fault.doing, "t_s": self.t_s(time.monotonic_ns())}
        self._errors.put(line, fault.error, f"{fault.doing}: ")
        self._emit(line)

    def broke_down(self, error: WorldError, started: bool) -> str:
        """The world's own code raised: gives what people are told, in one sentence."""
        cause = error.__cause__ or error
        line: dict[str, Any] = {"fault": "world", "t_s": self.t_s(time.monotonic_ns()) if self.t0_ns else 0.0}
        what = self._errors.put(line, cause)
        self._emit(line)
        return f"The environment {self._env.name} broke down: {what.rstrip('.')}. " + (
            "The run ends with the safe call; mend it there." if started else "It never began; mend it there."
        )
