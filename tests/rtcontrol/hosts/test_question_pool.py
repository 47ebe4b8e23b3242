"""Questions cross to whatever decides, and give way to sessions there."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from pooled import asked, reply_of

from rtcontrol.hosts.deciders import ANSWERS, QuestionSource, STSource, encode_questions
from rtcontrol.hosts.protocol import DecisionRequest, DecoderPool
from rtcontrol.models.questions import StateQuestion

pytestmark = pytest.mark.serial
QUESTIONS = [StateQuestion("go left?", ("true", "false")), StateQuestion("which?", ("red", "green blue", "green red"))]


def test_questions_are_answered_wherever_it_decides(pool: DecoderPool, sources: list[STSource]) -> None:
    host = pool.open("questions", QuestionSource(sources[0].spec))
    here = QuestionSource(sources[0].spec).build()
    for tick, state in enumerate(("x 1", "x 1", "zürich \ud7ff")):
        request = DecisionRequest(tick, 0, state, encode_questions(QUESTIONS))
        host.submit(request)
        reply, own = reply_of(host), here.decide(request).call
        assert (
            reply.error is None and reply.decision is not None and reply.decision.call is not None and own is not None
        )
        assert reply.decision.call.name == ANSWERS and reply.decision.forward_passes == 1
        found: Any = reply.decision.call.arguments["probabilities"]
        assert [math.fsum(p) for p in found] == [1.0, 1.0]
        for p, q in zip(found, own.arguments["probabilities"], strict=True):
            assert p == pytest.approx(q, abs=1e-4)


def test_what_does_not_fit_is_a_mistake_of_the_request(pool: DecoderPool, sources: list[STSource]) -> None:
    host = pool.open("questions", QuestionSource(sources[0].spec))
    host.submit(DecisionRequest(1, 0, "go " * 3000, encode_questions(QUESTIONS)))
    reply = reply_of(host)
    assert reply.mistake is not None and "more than the model's context" in reply.mistake[0]


def test_a_session_is_decided_between_the_passes_of_many_questions(pool: DecoderPool, sources: list[STSource]) -> None:
    many = [StateQuestion(f"{i} " + "go left or right or stop " * 12, ("true", "false")) for i in range(300)]
    questions = pool.open("questions", QuestionSource(sources[0].spec))
    session = pool.open("session", sources[0])
    session.submit(asked(0))
    reply_of(session)
    questions.submit(DecisionRequest(1, 0, "x 1", encode_questions(many)))
    began, ticks = time.monotonic(), 0
    while (reply := questions.wait(0)) is None:
        ticks += 1
        session.submit(asked(ticks))
        assert reply_of(session).tick == ticks
        assert time.monotonic() - began < 60
    assert reply.decision is not None and reply.decision.forward_passes > 5
    assert ticks >= 3, "it was decided meanwhile"
