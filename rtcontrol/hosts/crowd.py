"""A crowd's decisions through a host: one request asks for many members, one reply has many decisions.

Host, Ray actor and scheduler know nothing of it: the request has its `members`, and the reply's call, named DECIDED,
has the reply to each, in their order. The `epoch` of a member's request tells the members apart: each life has a number
of its own.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rtcontrol.hosts.deciders import FAULTS, SteppedDecider, STSource, build, describe, reply_to
from rtcontrol.hosts.protocol import Decider, DeciderSource, DecisionReply, DecisionRequest
from rtcontrol.models.call import Call, Decision

if TYPE_CHECKING:
    from rtcontrol.models.crowd import CrowdDecoder

DECIDED = "decided"


def crowd_request(number: int, asked: Sequence[DecisionRequest], within_ns: int) -> DecisionRequest:
    """Return one request for all of them. Their raw observations are for a script in this process."""
    return DecisionRequest(number, 0, "", "", within_ns=within_ns, members=tuple(asked))


def unpack(reply: DecisionReply, asked: Sequence[DecisionRequest]) -> list[DecisionReply]:
    """Return what came of each that was asked for; of a reply without them, its error is each one's."""
    made = reply.decision.call if reply.decision is not None else None
    found = made.arguments.get("made", ()) if made is not None and made.name == DECIDED else ()
    if reply.error is not None or len(found) != len(asked):
        error = reply.error or f"the decoder gave {len(found)} decisions for {len(asked)}"
        return [DecisionReply(one.tick, None, error, reply.decide_ns, reply.mistake) for one in asked]
    return [replace(one, decide_ns=reply.decide_ns) for one in found]


def _together(asked: Sequence[DecisionRequest], found: Sequence[Decision | BaseException]) -> Decision:
    """Return one decision for all. Where there is one alone, raises what was wrong with it."""
    if len(found) == 1 and isinstance(found[0], BaseException):
        raise found[0]
    passes = max((one.forward_passes for one in found if isinstance(one, Decision)), default=0)
    tokens = sum(one.tokens for one in found if isinstance(one, Decision))
    made = [reply_to(one, 0, what) for one, what in zip(asked, found, strict=True)]
    return Decision(Call(DECIDED, {"made": made}), {}, passes, tokens)


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

        every = request.members
        asked = [CharacterPrompt(str(one.epoch), one.observation, one.instruction, one.history) for one in every]
        return _together(every, (yield from self._decoder.decide_in_steps(asked)))

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
        return _together(request.members, [self._one(one) for one in request.members])

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
