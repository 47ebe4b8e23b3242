"""The decisions of one chat request: one call, or several, or the answer in the format asked for, or none any more."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.chat_request import ChatRequest, Offer
from rtcontrol.gateway.decide import Timed, ToolSets, Unavailable
from rtcontrol.gateway.errors import RequestError
from rtcontrol.loop.config import MAX_CALLS
from rtcontrol.models.call import Call
from rtcontrol.models.conversation import Made
from rtcontrol.models.errors import UserError


@dataclass(frozen=True)
class WrittenContent:
    """The text, None where the model has nothing to say; `lacking`: why there can be none."""

    text: str | None = None
    lacking: str | None = None


class ContentHeads:
    """The content heads of the last few tool sets: `sets` decides what they write, each set in a place of its own.
    `no_content` says why the model has none."""

    def __init__(self, sets: ToolSets, no_content: Callable[[], str | None]) -> None:
        self._sets, self._no_content = sets, no_content
        self._one_at_a_time = asyncio.Lock()

    async def write(
        self, tools: Sequence[dict[str, object]], instruction: str, observation: str, history: Sequence[str]
    ) -> WrittenContent:
        """Raises nothing: the call is given already. Others' calls come in between its parts."""
        try:
            if (why := self._no_content()) is not None:
                return WrittenContent(lacking=why)
            async with self._one_at_a_time:
                while True:
                    made = (await self._sets.decide(tuple(tools), instruction, observation, history)).decision.call
                    if made is None or not made.arguments["more"]:
                        return WrittenContent(None if made is None else str(made.arguments["text"]))
        except (UserError, Unavailable) as error:
            return WrittenContent(lacking=f"The content could not be written: {error}")

    def close(self) -> None:
        self._sets.close()


Decide = Callable[..., Awaitable[Timed]]


@dataclass(frozen=True)
class Answer:
    """All decisions that were made, the calls that they came to, or the text. `stopped`: why nothing is called."""

    timed: Sequence[Timed]
    calls: Sequence[Call]
    content: str | None
    stopped: str | None = None


async def decided(request: ChatRequest, offer: Offer, decide: Decide, limit_s: float) -> Answer:
    """One call, and with `parallel_tool_calls` further ones until one is null, repeats a call, fails, or is not there
    within `limit_s` of the request. Raises Refusal, and Unavailable where there is no first decision."""
    began = time.monotonic()
    timed, offer = await _first(request, offer, decide)
    if (held := timed[-1].held) is not None:
        return Answer(timed, (), held, held)
    call, answered = timed[-1].decision.call, request.answered()
    if call is not None and call.name == offer.answer:
        return Answer(timed, (), json.dumps(dict(call.arguments), ensure_ascii=False))
    again = _result(call, answered)
    if call is None or (again is not None and not offer.must):
        result = again or (answered[-1].result if answered else None)
        return Answer(timed, (), result or "", _why(call))
    calls = [call]
    while request.parallel_tool_calls and len(calls) < MAX_CALLS:
        history = [one.text() for one in (*request.made(), *(Made(c, None) for c in calls))]
        try:
            one = await asyncio.wait_for(_decide(request, offer, decide, history), limit_s - (time.monotonic() - began))
        except (TimeoutError, Unavailable, UserError, Refusal):
            break
        call = None if one.held else one.decision.call
        if call is None or call in calls or call.name == offer.answer or _result(call, answered) is not None:
            break
        timed.append(one)
        calls.append(call)
    return Answer(timed, calls, None)


async def _first(request: ChatRequest, offer: Offer, decide: Decide) -> tuple[list[Timed], Offer]:
    """The decisions until one is no call whose result is known. Where something must be called, such a function is left
    out, and the others are asked about: the same question again would get the same answer, for ever."""
    answered, history, timed = request.answered(), [one.text() for one in request.made()], []
    while True:
        timed.append(await _decide(request, offer, decide, history, bool(answered) and not offer.must))
        call = timed[-1].decision.call
        if call is None or timed[-1].held or not offer.must or _result(call, answered) is None:
            return timed, offer
        fewer = offer.without(call.name)
        if not fewer.tools:
            return timed, offer
        offer = fewer


async def _decide(
    request: ChatRequest, offer: Offer, decide: Decide, history: Sequence[str], allow_null: bool = False
) -> Timed:
    try:
        told = request.instruction(), request.observation(), history, allow_null, request.orders()
        return await decide(offer.tools, *told)
    except RequestError as mistake:
        code = "context_length_exceeded" if offer.param(mistake) == "messages" else "invalid_request"
        raise Refusal(400, code, mistake.what, mistake.remedy, offer.param(mistake)) from None


def _result(call: Call | None, answered: Sequence[Made]) -> str | None:
    """The result of this very call, the last one."""
    return next((one.result for one in reversed(answered) if one.call == call), None)


def _why(call: Call | None) -> str:
    return "The model calls nothing." if call is None else f"{call.text()} was called, and its result is known."
