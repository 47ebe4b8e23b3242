"""Trouble that passes, and instructions that are refused: what the client is told, what its session keeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from rtcontrol.bridges.wire.messages import CallMessage, Instruct
from rtcontrol.hosts.inprocess import InProcessPool
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.loop import warmup
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError
from rtcontrol.serve import negotiate
from tests.helpers.processes import until
from tests.rtcontrol.serve.wire_peer import WirePeer


class Picky:
    """Takes no instruction with `bad` in it; observations may have it sleep or fail."""

    def build(self) -> Picky:
        return self

    def decide(self, request: DecisionRequest) -> Decision:
        if "bad" in request.instruction:
            raise UserError("The instruction does not fit.", "Shorten it.")
        if "slow" in request.observation or "slow" in request.instruction:
            time.sleep(0.2)
        if "fail" in request.observation:
            raise ValueError("cannot")
        return Decision(Call("engines", {"main": 0, "side": 0}))


@pytest.fixture
def picky(bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server whose sessions all decide like this, with a warm-up as models have."""
    monkeypatch.setattr(negotiate, "_source", lambda config, agent, model: Picky())
    return bench(model="lander")


def parked(made: Any) -> None:
    until(lambda: made.admission.health()["sessions"]["parked"] == 1)


def accept(peer: WirePeer, text: str) -> None:
    peer.send(Instruct(session=peer.token, instruction=text))
    assert peer.ask().status == "fresh"
    assert any(isinstance(m, Instruct) and m.instruction == text for m in peer.inbox)


def test_a_full_decoder_refuses_for_now(made: Any) -> None:
    made.admission.pool._inline.places.limit = 0
    peer = made.peer()
    error = peer.denied()
    assert error.code == "busy" and error.retryable and error.fatal and error.field is None
    made.admission.pool._inline.places.limit = 1
    peer.enter()


def test_trouble_at_resuming_keeps_the_session(made: Any) -> None:
    first = made.peer()
    token = first.enter(pacing="client").session
    first.ask()
    first.close()
    parked(made)
    made.admission.pool._inline.places.limit = 0
    second = made.peer()
    error = second.denied(resume=token)
    assert error.code == "busy" and error.retryable and not error.fatal
    parked(made)
    made.admission.pool._inline.places.limit = 1
    assert second.enter(resume=token).resumed
    second.seq = first.seq
    assert second.ask().status == "fresh"


def test_a_decoder_that_does_not_answer_is_no_fault_of_the_instruction(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench(model="lander")
    monkeypatch.setattr(warmup, "TIMEOUT_S", 0.1)
    # Nobody has started it: it builds deciders and answers nothing.
    made.admission.pool._models, started = InProcessPool(4), made.admission.pool._models
    peer = made.peer()
    peer.hello()
    error = peer.refused(60)
    assert error.code == "decoder" and error.retryable and "no answer" in error.message
    made.admission.pool._models = started


def test_a_closed_decoder_is_told_as_such(bench: Any) -> None:
    made = bench(model="lander")
    assert made.admission.health()["decoder"] is True
    made.admission.pool._models.close()
    assert made.admission.health()["decoder"] is False
    peer = made.peer()
    error = peer.denied()
    assert error.code == "decoder" and error.retryable and error.field is None


def test_a_refused_instruction_does_not_lose_the_accepted_one(picky: Any) -> None:
    first = picky.peer()
    token = first.enter(pacing="client").session
    accept(first, "hover")
    first.send(Instruct(session=token, instruction="bad one"))
    seq = first.observe()
    error = first.refused()
    assert error.code == "instruction" and error.field == "instruction" and error.seq == seq
    assert "does not fit" in error.message
    assert any(isinstance(m, CallMessage) and m.seq_obs == seq for m in first.inbox)
    assert first.ask().status == "fresh"
    first.close()
    parked(picky)
    assert picky.peer().enter(resume=token).instruction == "hover"


def test_another_trouble_refuses_no_instruction_that_waits(picky: Any) -> None:
    peer = picky.enter(pacing="client")
    peer.observe("slow fail")
    time.sleep(0.05)
    peer.send(Instruct(session=peer.token, instruction="hover"))
    error = peer.refused()
    assert error.code == "decoder" and "cannot" in error.message
    assert peer.ask().status == "fresh"
    assert any(isinstance(m, Instruct) and m.instruction == "hover" for m in peer.inbox)
    peer.close()
    parked(picky)
    assert picky.peer().enter(resume=peer.token).instruction == "hover"


def test_instruction_that_nobody_tried_before_the_loss_gives_way_to_the_one_before(picky: Any) -> None:
    first = picky.peer()
    token = first.enter(pacing="client").session
    accept(first, "hover")
    first.send(Instruct(session=token, instruction="bad one"))
    first.close()
    parked(picky)
    second = picky.peer()
    error = second.denied(resume=token)
    assert error.code == "instruction" and error.retryable and not error.fatal
    parked(picky)
    assert second.enter(resume=token).instruction == "hover"


def test_rate_that_the_machine_does_not_reach_is_told_in_the_welcome(picky: Any) -> None:
    slow = picky.peer().enter(hz=50, instruction="slow")
    assert any("--hz 50 is above what this machine reaches" in warning for warning in slow.warnings)
    quick = picky.peer().enter(hz=1)
    assert not any("reaches" in warning for warning in quick.warnings)


def test_loop_that_waits_for_ever_does_not_say_inf(made: Any) -> None:
    peer = made.enter(pacing="client")
    peer.close()
    parked(made)
    assert not any("inf" in line for line in made.said)


def test_model_that_cannot_be_built_is_refused_for_good(picky: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Picky) -> Picky:
        raise UserError("The checkpoint is damaged.", "Give another.")

    monkeypatch.setattr(Picky, "build", broken)
    peer = picky.peer()
    error = peer.denied()
    assert (error.code, error.field) == ("model", "model") and error.fatal and not error.retryable
