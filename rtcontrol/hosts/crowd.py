"""A crowd's decisions through a host: one request asks for many members, one reply has many decisions.

Host, Ray actor and scheduler know nothing of it: the request's observation is the batch as JSON, and the reply's call,
named DECIDED, has a list of what came of each, in the order in which they were asked for. The `epoch` of a member's
request tells the members apart: each life has a number of its own.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rtcontrol.hosts.deciders import FAULTS, SteppedDecider, STSource, build, describe
from rtcontrol.hosts.protocol import Decider, DeciderSource, DecisionReply, DecisionRequest
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError

if TYPE_CHECKING:
    from rtcontrol.models.crowd import CrowdDecoder

DECIDED = "decided"


def crowd_request(number: int, asked: Sequence[DecisionRequest], within_ns: int) -> DecisionRequest:
    """Return one request for all of them. Their raw observations are for a script in this process."""
    packed = json.dumps([(one.epoch, one.tick, one.observation, one.instruction, *one.history) for one in asked])
    data = {str(one.epoch): one.data for one in asked}
    return DecisionRequest(number, 0, packed, "", data=data, within_ns=within_ns)


def unpack(reply: DecisionReply, asked: Sequence[DecisionRequest]) -> list[DecisionReply]:
    """Return what came of each that was asked for; of a reply without them, its error is each one's."""
    made = reply.decision.call if reply.decision is not None else None
    found = made.arguments.get("made", ()) if made is not None and made.name == DECIDED else ()
    if reply.error is not None or len(found) != len(asked):
        error = reply.error or f"the decoder gave {len(found)} decisions for {len(asked)}"
        return [DecisionReply(one.tick, None, error, reply.decide_ns, reply.mistake) for one in asked]
    return [
        DecisionReply(one.tick, decision, error, reply.decide_ns, mistake)
        for one, (decision, error, mistake) in zip(asked, found, strict=True)
    ]


def _asked(request: DecisionRequest) -> list[DecisionRequest]:
    """Return the requests of one for all."""
    data = request.data or {}
    return [
        DecisionRequest(tick, life, seen, goal, tuple(history), data.get(str(life)))
        for life, tick, seen, goal, *history in json.loads(request.observation)
    ]


def _packed(found: Decision | BaseException) -> list[Any]:
    if isinstance(found, Decision):
        return [found, None, None]
    mistake = (found.what, found.remedy) if isinstance(found, UserError) else None
    said = str(found) if isinstance(found, UserError) else f"{type(found).__name__}: {found}"
    return [None, (said.splitlines() or [""])[0], mistake]


def _together(found: Sequence[Decision | BaseException]) -> Decision:
    """Return one decision for all. Where there is one alone, raises what was wrong with it."""
    if len(found) == 1 and isinstance(found[0], BaseException):
        raise found[0]
    passes = max((one.forward_passes for one in found if isinstance(one, Decision)), default=0)
    tokens = sum(one.tokens for one in found if isinstance(one, Decision))
    return Decision(Call(DECIDED, {"made": [_packed(one) for one in found]}), {}, passes, tokens)


@dataclass(frozen=True)
class CrowdSTSource(STSource):
    """An ST model for a crowd of one agent."""

    def build(self) -> CrowdModel:  # type: ignore[override]
        from rtcontrol.models.crowd import CrowdDecoder

        return CrowdModel(CrowdDecoder(self.spec))


class CrowdModel(SteppedDecider):
    """The ST decoder of a crowd. A batch is decided by itself: it is large enough."""

    patient = False
    kind = None

    def __init__(self, decoder: CrowdDecoder) -> None:
        self._decoder = decoder

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        from rtcontrol.models.crowd import CharacterPrompt

        every = _asked(request)
        asked = [CharacterPrompt(str(one.epoch), one.observation, one.instruction, one.history) for one in every]
        return _together((yield from self._decoder.decide_in_steps(asked)))

    def cancel(self) -> None:
        self._decoder.cancel()

    def info(self) -> dict[str, Any]:
        return dict(self._decoder.lone.info())


@dataclass(frozen=True)
class CrowdPlainSource:
    """Of a plain decider: no-op, random, or an expert's script."""

    source: DeciderSource

    def build(self) -> CrowdScript:
        return CrowdScript(build(self.source))


class CrowdScript:
    """Asks a plain decider for one character after the other."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider

    def decide(self, request: DecisionRequest) -> Decision:
        return _together([self._one(one) for one in _asked(request)])

    def _one(self, request: DecisionRequest) -> Decision | BaseException:
        try:
            return self._decider.decide(request)
        except FAULTS as fault:
            return fault

    def info(self) -> dict[str, Any]:
        return describe(self._decider)


def crowd_source(source: DeciderSource) -> DeciderSource:
    """The same decider, for a crowd."""
    return CrowdSTSource(source.spec) if isinstance(source, STSource) else CrowdPlainSource(source)
