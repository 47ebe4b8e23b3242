"""A crowd's decisions through a host: one request asks for many characters, one reply has many decisions.

Host, Ray actor and scheduler know nothing of it: the request's observation is the batch as JSON, and the reply's call,
named DECIDED, has a list of what came of each, in the order in which they were asked for.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rtcontrol.hosts.deciders import FAULTS, SteppedDecider, STSource, build, describe
from rtcontrol.hosts.messages import decision_fields, decision_of
from rtcontrol.hosts.protocol import Decider, DeciderSource, DecisionReply, DecisionRequest
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError

if TYPE_CHECKING:
    from rtcontrol.models.crowd import CrowdDecoder

DECIDED = "decided"


@dataclass(frozen=True, slots=True)
class CharacterAsk:
    """What one character of a crowd is to decide upon; `key` tells it from the others, `tick` is its own."""

    key: str
    tick: int
    observation: str
    instruction: str
    history: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class CharacterDecision:
    """What came of it: a decision, or an `error`; `mistake` is a UserError's what and remedy."""

    decision: Decision | None
    error: str | None = None
    mistake: tuple[str, str] | None = None


def crowd_request(
    tick: int, asked: Sequence[CharacterAsk], within_ns: int, data: Mapping[str, Any] | None = None
) -> DecisionRequest:
    """One request for all of them. `data` by key is for a script in this process."""
    packed = json.dumps([(a.key, a.tick, a.observation, a.instruction, *a.history) for a in asked])
    return DecisionRequest(tick, 0, packed, "", data=data, within_ns=within_ns)


def unpack(reply: DecisionReply, count: int) -> list[CharacterDecision]:
    """What came of each of the `count` that were asked for; of a reply without them, its error is each one's."""
    made = reply.decision.call if reply.decision is not None else None
    found = made.arguments.get("made", ()) if made is not None and made.name == DECIDED else ()
    if reply.error is not None or len(found) != count:
        why = reply.error or f"the decoder gave {len(found)} decisions for {count}"
        return [CharacterDecision(None, why, reply.mistake)] * count
    return [_character(one) for one in found]


def _character(one: Sequence[Any]) -> CharacterDecision:
    made, error, mistake = one
    return CharacterDecision(made and decision_of(made), error, mistake and (mistake[0], mistake[1]))


def _packed(found: Decision | BaseException) -> list[Any]:
    if isinstance(found, Decision):
        return [decision_fields(found), None, None]
    mistake = (found.what, found.remedy) if isinstance(found, UserError) else None
    said = str(found) if isinstance(found, UserError) else f"{type(found).__name__}: {found}"
    return [None, (said.splitlines() or [""])[0], mistake]


def _reply(found: Sequence[Decision | BaseException]) -> Decision:
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

        asked = [
            CharacterPrompt(key, seen, told, past) for key, _, seen, told, *past in json.loads(request.observation)
        ]
        return _reply((yield from self._decoder.decide_in_steps(asked)))

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
        return _reply([self._one(request, *one) for one in json.loads(request.observation)])

    def _one(
        self, request: DecisionRequest, key: str, tick: int, seen: str, told: str, *history: str
    ) -> Decision | BaseException:
        data = None if request.data is None else request.data.get(key)
        try:
            return self._decider.decide(DecisionRequest(tick, 0, seen, told, history, data))
        except FAULTS as fault:
            return fault

    def info(self) -> dict[str, Any]:
        return describe(self._decider)


def crowd_source(source: DeciderSource) -> DeciderSource:
    """The same decider, for a crowd."""
    return CrowdSTSource(source.spec) if isinstance(source, STSource) else CrowdPlainSource(source)
