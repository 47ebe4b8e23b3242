"""Tests of all stages of a tick with a simulated clock. All instants are exact, nothing waits."""

from __future__ import annotations

import itertools
import json
from collections import deque
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import pytest
from rig import GO, GRIP, MS, START_NS, Answer, Rig, go

from rtcontrol import records as ev
from rtcontrol.envs.base import Acknowledgement
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, HostEvent
from rtcontrol.loop.core import Rules
from rtcontrol.loop.loop import RunState, write_end
from rtcontrol.loop.operator import CONTINUED, SUSPENDED, UNREAD, OperatorState
from rtcontrol.models.call import Call, Decision
from rtcontrol.records import EvidenceSample, LowConfidence, OperatorCommand, ThreadReading
from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.events import topic_of, topic_schema


def on(tick: int, answer: Answer) -> Any:
    """Return a decider that gives one tick this answer, and answers the others in 5 ms."""
    return lambda request: answer if request.tick == tick else Answer(go())


def counted(rig: Rig) -> Account:
    """Return the counts of a run's record."""
    account = Account()
    for line in rig.lines:
        account.add(line)
    return account


def gate(least: float) -> Any:
    def doubt(decision: Decision) -> LowConfidence | None:
        sure = min(decision.confidence.values(), default=1.0)
        return LowConfidence("function", sure, least) if sure < least else None

    return doubt


def test_core_has_at_most_twelve_attributes() -> None:
    core = Rig().core
    assert len(vars(core)) <= 12
    for part in (core.ledger, core.evidence_collector, core.operator, core.requests, core.fallback):
        assert len(vars(part)) <= 12
    assert len(fields(Rules)) <= 12


# -- release ----------------------------------------------------------------------------------------------------------


def test_run_on_time_counts_every_release() -> None:
    rig = Rig(duration_ns=500 * MS)
    rig.seq = itertools.count(0, 2)  # the world makes two observations a period
    rig.run(1000)
    assert [tick["superseded"] for tick in rig.ticks.values()] == [0, *[1] * 24]
    assert rig.kinds == ["call"] * 25 and rig.actions.count(ev.StopRun("duration")) == 1
    assert [t["t_s"] for t in rig.ticks.values()] == [round(0.02 * k, 3) for k in range(25)]
    assert rig.acts[-1] == (500.0, "SAFE")
    assert rig.ticks[3]["latency_ms"] == 5.1 and rig.ticks[3]["jitter_ms"] == 0.0


def test_late_wake_skips_releases_and_keeps_the_phase() -> None:
    rig = Rig()
    rig.wakes = {100: 45.0}
    rig.sample = EvidenceSample(pauses=((START_NS, START_NS + 148 * MS, "stopped"),))
    rig.run(300)
    assert 5 not in rig.ticks and 6 not in rig.ticks
    late = rig.ticks[7]
    assert (late["skipped"], late["skip_cause"], late["skip_subcause"]) == (2, "pause", "stopped")
    assert late["t_s"] == 0.14 and late["kind"] == "call"


def test_guard_follows_each_release() -> None:
    rig = Rig(hold_ns=100 * MS).run(60)
    guards = [action.until_ns for action in rig.actions if isinstance(action, ev.ArmGuard)]
    assert guards == [START_NS + MS + round(ms * MS) + (2 * 20 + 100) * MS for ms in (0, 20, 40)]
    assert not [action for action in Rig(clock="lockstep").run(0).actions if isinstance(action, ev.ArmGuard)]


# -- observe, ask -----------------------------------------------------------------------------------------------------


def fails(*given: Any) -> Any:
    raise KeyError("camera")


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"look": lambda ms: None}, "no_observation.none_yet"),
        ({"read": fails}, "no_observation.unreadable"),
        ({"age_ms": 300.0}, "stale_observation.late"),
        ({"decide": lambda request: fails()}, "decide.send"),
        ({"decide": lambda request: Answer(error="out of ideas")}, "decide.error"),
        ({"decide": lambda request: Answer(error="gone", more={"loss": "timeout"})}, "decide.timeout"),
        ({"decide": lambda request: Answer(go(77))}, "invalid"),
        ({"act_ms": lambda call: OSError("motor is on fire")}, "execute.raised"),
    ],
)
def test_failure_in_time_has_its_cause(change: dict[str, Any], cause: str) -> None:
    rig = Rig()
    vars(rig).update(change)
    rig.run(50)
    assert set(rig.causes.values()) == {cause} and len(rig.causes) >= 2
    tick = rig.ticks[0]
    assert tick["kind"] == "miss" and tick["action"] == "hold"
    assert tick["evidence"]["late_ms"] is not None


def test_error_is_shown_to_people_once() -> None:
    rig = Rig(lambda request: Answer(error="out of ideas")).run(100)
    assert [note for note in rig.notes if "out of ideas" in note] == ["tick 0: decide: out of ideas"]
    assert all(tick["error"] == "out of ideas" for tick in rig.ticks.values())


def test_unchanged_observation_is_frozen() -> None:
    rig = Rig(max_age_ns=30 * MS)
    first = rig.core.advance
    seen: list[Any] = []

    def frozen(event: ev.Event, now_ns: int) -> Any:
        if isinstance(event, ev.ObserveResult):
            seen.append(event.observation)
            event.observation = seen[0]
        return first(event, now_ns)

    rig.core.advance = frozen  # type: ignore[method-assign]
    rig.run(100)
    assert rig.causes == dict.fromkeys((2, 3, 4), "stale_observation.frozen")


def test_dead_host_gets_no_request() -> None:
    lost = (HostEvent(START_NS + 30 * MS, "lost", 0.0),)
    rig = Rig()
    rig.at(30, lambda: rig.host(alive=False, incarnation=1, events=lost)).run(100)
    assert rig.causes == {2: "host.restarting", 3: "host.restarting", 4: "host.restarting"}
    assert len(rig.requests) == 2 and [line["host_event"]["event"] for line in rig.lines_with("host_event")] == ["lost"]


def test_request_that_died_with_its_decoder_is_lost() -> None:
    rig = Rig(on(1, Answer(go(), None)))
    rig.at(30, lambda: rig.host(incarnation=1)).run(100)
    assert rig.causes == {1: "host.lost"}
    assert rig.core.outstanding.late == {}


def test_host_that_gives_up_ends_the_run() -> None:
    rig = Rig()
    rig.at(30, lambda: rig.host(gave_up="out of memory")).run(200)
    assert ev.StopRun("host") in rig.actions and "no more decisions: out of memory" in rig.notes and len(rig.ticks) == 2


def test_history_has_the_calls_that_acted() -> None:
    rig = Rig(lambda request: Answer(go(request.tick % 3)))
    rig.at(90, lambda: setattr(rig, "epoch", 2)).run(160)
    assert rig.requests[4].history == ("go(speed=1)", "go(speed=2)", "go(speed=0)")
    assert rig.requests[5].history == () and rig.requests[5].epoch == 2
    assert rig.requests[6].history == ("go(speed=2)",)


def test_acknowledged_calls_replace_sent_calls_in_history() -> None:
    rig = Rig()
    rig.acknowledged = [GRIP]
    rig.run(60)
    assert rig.requests[2].history == ("grip(closed=1)",) * 3


# -- wait -------------------------------------------------------------------------------------------------------------


def test_miss_with_a_late_reply_is_recorded_once() -> None:
    rig = Rig(on(3, Answer(go(), 23.0, begun_ms=19.0))).run(200)
    # Its decoder began it late: what looked slow at the deadline was queued.
    assert rig.causes == {3: "decide.queued"}
    assert rig.ticks[3]["evidence"]["steps_ms"]["queue"] == 19.0
    late = rig.lines_with("late")
    assert [(line["late"], line["used"], line["latency_ms"], "cause" in line) for line in late] == [
        (3, False, 23.0, False)
    ]
    assert rig.lines.index(late[0]) > rig.lines.index(rig.ticks[3])
    assert not rig.lines_with("revised")


@pytest.mark.parametrize("until", [79.0, 81.0, 99.0])
def test_miss_without_a_reply_waits_for_a_period(until: float) -> None:
    rig = Rig(on(2, Answer(None, None)))
    seen: list[int] = []
    rig.at(until, lambda: seen.extend(rig.ticks)).run(200)
    assert (2 in seen) == (until > 80.0) and rig.causes == {2: "decide.decoder_slow"}
    # What came meanwhile stands behind it.
    assert list(rig.ticks) == list(range(10))


def test_stopped_decoder_is_named_by_its_state() -> None:
    rig = Rig(on(2, Answer(None, None)))
    threads = [ThreadReading(role, state, 0, 0) for role, state in (("loop", "S"), ("actuator", "S"), ("decoder", "T"))]
    rig.sample = EvidenceSample(apart=True, threads=threads)
    assert rig.run(200).causes == {2: "decide.decoder_stopped"}


def test_gaps_of_other_replies_name_a_miss() -> None:
    stopped = ((START_NS + MS + 42 * MS, START_NS + MS + 59 * MS),)

    def decide(request: DecisionRequest) -> Answer:
        return Answer(None, None) if request.tick == 2 else Answer(go(), gaps=stopped if request.tick == 3 else ())

    rig = Rig(decide)
    rig.sample = EvidenceSample(apart=True)
    rig.run(200)
    assert rig.causes == {2: "decide.decoder_stopped"}
    assert rig.ticks[2]["evidence"]["decoder_gaps"] == [[2.0, 19.0]]


def test_reply_at_the_end_judges_its_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(lambda request: Answer(None, None) if request.tick in (2, 3) else Answer(go()))

    def take_late() -> None:
        started_ns = rig.now_ns - MS
        for k in (3, 2):
            assert rig.core.awaits_late_reply
            rig._dispatch(DecisionReply(k, go(), None, MS, received_ns=started_ns - 20 * MS, started_ns=started_ns))

    monkeypatch.setattr(rig, "_settle_safe", take_late)
    rig.run(65)
    assert rig.causes == {2: "decide.queued"} and list(rig.ticks) == [0, 1, 2] and not rig.core.awaits_late_reply


def test_unanswered_request_delays_the_next_one() -> None:
    rig = Rig(lambda request: Answer(None, None) if request.tick in (2, 3) else Answer(go())).run(200)
    assert rig.causes == {2: "decide.decoder_slow", 3: "decide.queued"}


def test_release_due_while_loop_away_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.wakes = {100: 300.0}
    rig.runs = lambda ms: (b"0 0 1",) * 2 if ms < 250 else (b"0 150000000 1",) * 2
    rig.sample = EvidenceSample(threads=[ThreadReading("loop", "R", 0, 150 * MS)])
    settle = rig._settle_safe
    # What comes before the last safe call is not part of it.
    monkeypatch.setattr(rig, "_settle_safe", lambda: setattr(rig, "now_ns", rig.now_ns + 60 * MS) or settle())
    rig.run(250)
    last = rig.ticks[11]  # of the one after nobody knows whether it would have begun late
    assert (last["kind"], last["skipped"], rig.acts[-1][1]) == ("miss", 6, "SAFE")
    assert rig.causes == {11: "wake.scheduler"} and last["skip_subcause"] == "scheduler"
    assert last["evidence"]["steps_ms"] == {"wake": 30.0, "observe": 0.0}


def test_releases_skipped_before_open_tick_are_counted() -> None:
    rig = Rig(on(7, Answer(go(), 30.0)))
    rig.wakes = {100: 45.0}
    rig.run(150)
    loop: Any = SimpleNamespace(state=RunState(ended_by="duration"), runner=SimpleNamespace(core=rig.core))
    loop.recorder = SimpleNamespace(write=rig.lines.append)
    write_end(loop)
    account = counted(rig)
    account.assert_consistent()
    assert (account.ticks, account.counts["skipped_releases"], rig.lines[-1]["open"]) == (5, 2, 1)


# -- check ------------------------------------------------------------------------------------------------------------


def test_null_renews_the_hold_unsure_does_not() -> None:
    null = Rig(lambda request: Answer(Decision(None)), hold_ns=50 * MS).run(300)
    assert set(null.kinds) == {"null"} and null.acts == [(300.0, "SAFE")]
    unsure = Rig(lambda request: Answer(go(sure=0.4)), hold_ns=50 * MS, doubt=gate(0.5)).run(300)
    assert {t["why"] for t in unsure.ticks.values()} == {"confidence"} and not unsure.causes
    assert unsure.acts == [(50.0, "SAFE"), (300.0, "SAFE")]


def test_unsure_for_half_a_second_notifies_once() -> None:
    rig = Rig(lambda request: Answer(go(sure=0.4)), doubt=gate(0.5)).run(1500)
    doubted = [action for action in rig.actions if isinstance(action, ev.LoopReport) and action.kind == "doubted"]
    assert len(doubted) == 1 and sum("is not understood" in note for note in rig.notes) == 1


def test_unfamiliar_observation_is_the_reason_of_a_held_call() -> None:
    decision = replace(go(sure=0.4), unfamiliar=("stock 4 (in training 0 to 2)",))
    rig = Rig(lambda request: Answer(decision), doubt=gate(0.5)).run(1500)
    assert {(t["why"], *t["unfamiliar"]) for t in rig.ticks.values()} == {("unfamiliar", *decision.unfamiliar)}
    assert [a.kind for a in rig.actions if isinstance(a, ev.LoopReport)] == ["unfamiliar"]
    assert sum("unlike those of training: stock 4" in note for note in rig.notes) == 1
    account = counted(rig)
    assert account.breakdowns["unfamiliar"] == {decision.unfamiliar[0]: len(rig.ticks)}
    sure = Rig(lambda request: Answer(replace(decision, confidence={})), doubt=gate(0.5)).run(100)
    assert set(sure.kinds) == {"call"}


# -- execute ----------------------------------------------------------------------------------------------------------


def test_slow_call_misses_and_completes_its_evidence() -> None:
    rig = Rig(lambda request: Answer(GRIP_DECISION if request.tick == 2 else go()))
    rig.act_ms = lambda call: 30.0 if call == GRIP else 0.1
    rig.sample = EvidenceSample(acting=((START_NS + MS + 45 * MS, START_NS + MS + 75 * MS),))
    rig.run(200)
    assert rig.causes == {2: "execute.slow"}
    assert rig.ticks[2]["error"] == "the call has not ended by its deadline"
    assert rig.ticks[2]["evidence"]["steps_ms"]["execute"] == 15.0, "until its deadline"
    (overran,) = rig.lines_with("overran")
    assert (overran["overran"], overran["effect"], overran["execute_ms"]) == (2, "acted", 30.0)
    assert "cause" not in overran
    assert (75.0, "grip(closed=1)") in rig.acts


GRIP_DECISION = Decision(GRIP, {"function": 1.0})


def test_calls_that_cannot_start_are_dropped() -> None:
    rig = Rig(lambda request: Answer(GRIP_DECISION if request.tick == 2 else go()))
    rig.act_ms = lambda call: 70.0 if call == GRIP else 0.1
    rig.sample = EvidenceSample(acting=((START_NS + MS + 45 * MS, 0),))
    rig.run(200)
    errors = {k: tick.get("error", "") for k, tick in rig.ticks.items() if k in rig.causes}
    assert set(errors) == {2, 3, 4} and "has not ended" in errors[2]
    assert "could not start by its deadline, and was dropped" in errors[3]
    assert rig.causes[4] == "execute.busy"
    assert [call for ms, call in rig.acts if 60 < ms < 115.05] == ["grip(closed=1)"]


def test_call_of_ended_epoch_is_not_usual() -> None:
    answers = {1: Answer(go(), 2.0), 5: Answer(go(), 8.0)}
    rig = Rig(lambda request: answers.get(request.tick, Answer(Decision(None))))
    rig.at(21, lambda: rig.keep_busy(37.0)).at(30, lambda: setattr(rig, "epoch", 2))
    busy_ns = START_NS + MS + 90 * MS
    rig.sample = EvidenceSample(acting=((busy_ns, 0),))
    rig.at(90, lambda: rig.keep_busy(130.0)).run(140)
    assert rig.ticks[1]["kind"] == "epoch_over" and rig.causes == {5: "execute.busy"}


# -- the fallback -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("on_miss", "action", "acts"), [("safe", "safe", 1), ("stop", "stop", 0)])
def test_miss_brings_safe_call_or_ends_run(on_miss: str, action: str, acts: int) -> None:
    rig = Rig(on(3, Answer(None, None)), on_miss=on_miss).run(200)
    assert rig.ticks[3]["action"] == action
    assert [call for _, call in rig.acts].count("SAFE") == acts + 1
    assert (ev.StopRun("miss") in rig.actions) == (on_miss == "stop")
    assert len(rig.ticks) == (4 if on_miss == "stop" else 10)


def test_failing_safe_call_is_pending_until_active() -> None:
    rig = Rig(lambda request: Answer(go(), 5.0 if request.tick < 2 else None), on_miss="safe")
    rig.safe_fails = 2
    rig.run(160)
    assert [rig.ticks[k]["action"] for k in (2, 3, 4, 5)] == ["safe", "pending", "pending", "none"]
    assert [line["in_force"] for line in rig.lines_with("safe")][:3] == [False, False, True]
    assert sum("does not answer" in note for note in rig.notes) == 1
    account = counted(rig)
    assert (account.counts["safe_calls"], account.counts["fallback_errors"]) == (1, 2)


def test_call_failed_after_safe_call_demands_it_again() -> None:
    decide = lambda request: Answer(go(), None if request.tick == 1 else 5.0)  # noqa: E731
    rig = Rig(decide, on_miss="safe")
    rig.act_ms = lambda call: OSError("half done") if 44 < rig.ms < 46 else 0.1
    rig.run(60)
    assert rig.ticks[1]["action"] == "safe" and rig.ticks[2]["action"] == "pending"
    assert [ms for ms, call in rig.acts if call == "SAFE"][:2] == [40.0, 45.0]


def test_remote_world_receives_one_emission_a_tick() -> None:
    def decide(request: DecisionRequest) -> Answer:
        return {1: Answer(None, None), 2: Answer(Decision(None)), 3: Answer(error="no")}.get(request.tick, Answer(go()))

    rig = Rig(decide, emits=True).run(100)
    told = {e.tick: (e.status, e.cause, e.error) for e in rig.emissions if e.tick < 4}
    assert told == {
        0: ("fresh", None, None),
        1: ("held", "decide", None),  # at its deadline, by what is known then
        2: ("fresh", None, None),
        3: ("held", "decide", "no"),
    }
    assert len(rig.emissions) == 5 + 1 and rig.emissions[-1].status == "safe"


def test_acknowledgements_wait_for_their_tick() -> None:
    rig = Rig(emits=True)
    rig.act_ms = lambda call: 30.0 if rig.ms < 10 else 0.1
    rig.heard = deque()
    rig.at(10, lambda: rig.heard.append(Acknowledgement(0, "executed", START_NS)))  # type: ignore[union-attr]
    seen: list[int] = []
    rig.at(25, lambda: seen.append(len(rig.lines_with("ack")))).run(100)
    assert seen == [0] and len(rig.lines_with("ack")) == 1


def test_call_dropped_by_the_guard_is_a_pause() -> None:
    rig = Rig(on(2, Answer(go(), 6.0)), pipeline=3, deadline_ns=60 * MS)
    rig.decide = lambda request: Answer(go()) if request.tick == 2 else Answer(Decision(None))
    rig.sample = EvidenceSample(pauses=((START_NS + MS + 46 * MS, START_NS + MS + 69 * MS, "stopped"),))
    rig.at(41, lambda: rig.keep_busy(200.0)).at(70, lambda: rig.drop("too_late")).run(75)
    assert rig.causes == {2: "pause.stopped"} and rig.ticks[2]["error"].endswith("preempted by the safe call")


# -- people -----------------------------------------------------------------------------------------------------------


def test_pause_holds_calls_until_the_resume() -> None:
    rig = Rig()
    rig.at(46, lambda: rig.say("pause") and None).at(104, lambda: rig.say("resume") and None).run(200)
    assert [call for ms, call in rig.acts if 46 <= ms < 110] == ["SAFE"]
    # The tick that was asked for before the resume does not act.
    assert [k for k, tick in rig.ticks.items() if tick.get("why") == "paused"] == [3, 4, 5]
    assert [line["people"] for line in rig.lines_with("people")] == ["pause", "resume"] and not rig.causes
    assert (125.1, GO.text()) in rig.acts


def test_new_episode_in_pause_brings_safe_call_again() -> None:
    rig = Rig()
    rig.at(46, lambda: rig.say("pause") and None).at(90, lambda: setattr(rig, "epoch", 2)).run(160)
    assert [call for ms, call in rig.acts if 46 <= ms < 160] == ["SAFE", "SAFE"]


def test_misses_in_a_pause_demand_nothing_more() -> None:
    rig = Rig(lambda request: Answer(go(), 5.0 if request.tick < 2 else None))
    rig.at(46, lambda: rig.say("pause") and None).run(200)
    assert [call for ms, call in rig.acts if 46 <= ms < 200] == ["SAFE"]
    assert {rig.ticks[k]["action"] for k in (3, 4, 5)} == {"none"}


def test_stop_is_final() -> None:
    rig = Rig()
    answers: list[str] = []
    rig.at(46, lambda: answers.append(rig.say("stop"))).at(50, lambda: answers.append(rig.say("resume"))).run(200)
    assert answers == ["stopped (page)", "The run is stopped, which is final."]
    assert [call for ms, call in rig.acts if ms >= 46] == ["SAFE", "SAFE"]


def closing(request: DecisionRequest) -> Answer:
    """Decide to close the gripper at tick 1."""
    return Answer(GRIP_DECISION if request.tick == 1 else go())


def test_named_tool_acts_only_after_a_yes() -> None:
    rig = Rig(closing, confirm=("grip",))
    answers: list[str] = []
    rig.at(90, lambda: answers.append(rig.say("confirm", 99)))
    rig.at(95, lambda: answers.append(rig.say("confirm", 1))).run(200)
    assert answers == [UNREAD.format(GRIP.text(), 1), "confirm (page)"]
    assert [ms for ms, call in rig.acts if call == GRIP.text()] == [95.1]
    assert rig.ticks[1]["why"] == "confirm" and [line["people"] for line in rig.lines_with("people")] == [
        "ask",
        "confirm",
    ]
    (late,) = rig.lines_with("late")
    assert (late["late"], late["used"], late["waited_ms"]) == (1, True, 70.0)


@pytest.mark.parametrize(
    ("words", "people"),
    [
        ([], ["ask", "unanswered"]),
        ([(40, "deny"), (50, "confirm")], ["ask", "deny"]),
        ([(40, "pause")], ["ask", "pause", "unanswered"]),
    ],
)
def test_call_without_a_yes_never_acts(words: list[tuple[float, str]], people: list[str]) -> None:
    rig = Rig(closing, confirm=("grip",), confirm_ns=60 * MS)
    for ms, word in words:
        rig.at(ms, lambda word=word: rig.say(word) and None)  # type: ignore[misc]
    rig.run(200)
    assert GRIP.text() not in [call for _, call in rig.acts]
    assert [line["people"] for line in rig.lines_with("people")] == people
    assert any("it was not confirmed in time" in note for note in rig.notes) == (not words)


def test_command_for_another_question_is_ignored() -> None:
    calls = {1: GRIP, 5: Call("grip", {"closed": 0})}
    decide = lambda request: Answer(Decision(calls[request.tick]) if request.tick in calls else go())  # noqa: E731
    rig = Rig(decide, confirm=("grip",), confirm_ns=70 * MS)
    answers: list[str] = []
    for ms, k in ((10, None), (110, None), (111, 1), (165, None)):  # the second question is shown at 105 ms
        rig.at(ms, lambda k=k: answers.append(rig.say("confirm", k)))  # type: ignore[misc]
    rig.run(200)
    unread = UNREAD.format("grip(closed=0)", 5)
    assert answers == ["No call waits for approval.", unread, unread, "confirm (page)"]
    assert [call for _, call in rig.acts if call.startswith("grip")] == ["grip(closed=0)"]


def test_yes_names_its_question_or_comes_two_seconds_later() -> None:
    state = OperatorState(10_000_000_000)
    state.show_approval(
        ev.ShowApproval(cast("Any", SimpleNamespace(tick=SimpleNamespace(k=3), call=GRIP, denied=False))), 0
    )

    def answered(word: str, s: float, k: int | None = None) -> bool:
        return state.apply(OperatorCommand(word, "keyboard", round(s * 1e9), k))[1] is not None

    assert not answered("confirm", 1.9) and answered("confirm", 2.0)
    assert answered("confirm", 0.1, 3) and not answered("confirm", 5.0, 2)
    assert answered("deny", 0.1)


def test_pause_of_a_person_outlasts_ctrl_z() -> None:
    def states(*commands: tuple[str, str]) -> list[str]:
        state = OperatorState(1)
        return [(state.apply(OperatorCommand(word, by, 0)), state.state)[1] for word, by in commands]

    suspend, go_on = ("pause", SUSPENDED), ("resume", CONTINUED)
    assert states(suspend, go_on) == ["paused", "running"]
    assert states(suspend, ("pause", "page"), go_on, ("resume", "page")) == ["paused", "paused", "paused", "running"]
    assert states(("pause", "page"), suspend, go_on) == ["paused", "paused", "paused"]
    # While the process is about to stop, nothing may act.
    assert states(suspend, ("resume", "page"), go_on) == ["paused", "paused", "running"]


# -- several calls a tick ---------------------------------------------------------------------------------------------


def in_turn(*decisions: Decision | None, ms: float = 4.0) -> Any:
    """Return a decider that gives the n-th decision of each tick in turn, and then repeats the last one."""

    def decide(request: DecisionRequest) -> Answer:
        before = len([call for call in request.history if call.startswith(str(request.tick))])
        n = min(len(request.history), len(decisions) - 1) if before == 0 else before
        return Answer(decisions[n], ms)

    return decide


@pytest.mark.parametrize(
    ("decisions", "ms", "until", "further", "acts"),
    [
        ((go(1), go(2), Decision(None)), 4.0, 15, [(1, "acted"), (2, "null")], [1, 2]),
        ((go(1), go(2), go(3)), 8.0, 19, [(1, "acted"), (2, "cut")], [1, 2]),  # no time is left
    ],
)
def test_calls_of_a_tick_follow_each_other(
    decisions: tuple[Decision, ...], ms: float, until: float, further: list[tuple[int, str]], acts: list[int]
) -> None:
    rig = Rig(in_turn(*decisions, ms=ms), calls_per_tick=4, history=6).run(until)
    assert [(line["n"], line["outcome"]) for line in rig.lines_with("further")] == further
    assert [call for _, call in rig.acts] == [*(f"go(speed={speed})" for speed in acts), "SAFE"]
    histories = [(), ("go(speed=1)",), ("go(speed=1)", "go(speed=2)")]
    assert [request.history for request in rig.requests] == histories[: len(rig.requests)]


def test_repeated_call_ends_its_tick() -> None:
    rig = Rig(lambda request: Answer(go(1), 4.0), calls_per_tick=4, history=6).run(15)
    assert [(line["n"], line["outcome"]) for line in rig.lines_with("further")] == [(1, "repeated")]


def test_further_decision_after_deadline_is_not_late() -> None:
    decide = lambda request: Answer(go(1 + len(request.history)), 5.0 if not request.history else 30.0)  # noqa: E731
    rig = Rig(decide, calls_per_tick=2, history=6).run(60)
    assert [(line["further"], line["outcome"]) for line in rig.lines_with("further")][:1] == [(0, "cut")]
    assert 0 not in [line["late"] for line in rig.lines_with("late")] and "cause" not in rig.ticks[0]


def test_further_call_that_raises_brings_the_fallback() -> None:
    rig = Rig(in_turn(go(1), go(2), go(3)), calls_per_tick=4, history=6, on_miss="safe")
    rig.act_ms = lambda call: OSError("the drive does not answer") if call.arguments["speed"] == 2 else 0.1
    rig.run(15)
    (line,) = rig.lines_with("further")
    assert (line["outcome"], line["cause"], line["subcause"], line["action"]) == ("failed", "execute", "raised", "safe")
    assert [call for _, call in rig.acts][:2] == ["go(speed=1)", "SAFE"] and "cause" not in rig.ticks[0]


def test_further_call_that_waits_ends_at_deadline() -> None:
    rig = Rig(in_turn(go(1), go(2), go(3)), calls_per_tick=3, history=6)
    rig.act_ms = lambda call: 30.0 if call.arguments["speed"] == 2 else 0.1
    rig.run(60)
    line = next(line for line in rig.lines_with("further") if line["further"] == 0)
    assert (line["outcome"], line["subcause"]) == ("failed", "slow") and "cause" not in rig.ticks[0]
    assert [line["overran"] for line in rig.lines_with("overran")][:1] == [0]


# -- hysteresis: the call that a decision is compared with ------------------------------------------------------------


def active_calls(rig: Rig) -> list[int | None]:
    return [None if one.active_call is None else one.active_call.arguments["speed"] for one in rig.requests]


def test_hysteresis_compares_with_last_call_that_acted() -> None:
    rig = Rig(lambda request: Answer(go(request.tick % 3)), hysteresis=True).run(120)
    assert active_calls(rig) == [None, 0, 1, 2, 0, 1]


def test_hysteresis_ignores_other_epoch_or_instruction() -> None:
    rig = Rig(hysteresis=True)
    rig.at(50, lambda: setattr(rig, "epoch", 2)).at(90, lambda: ev.NewInstruction("go left")).run(140)
    assert active_calls(rig) == [None, 1, 1, None, 1, None, 1]


@pytest.mark.parametrize(
    ("status", "why", "stands"),
    [("executed", "fresh", True), ("refused", "fresh", False), ("expired", "fresh", False), ("refused", "safe", True)],
)
def test_hysteresis_ignores_refused_call(status: Any, why: Any, stands: bool) -> None:
    rig = Rig(emits=True, hysteresis=True)
    rig.heard = heard = deque()
    rig.at(50, lambda: heard.append(Acknowledgement(2, status, START_NS, why))).run(80)
    assert active_calls(rig) == [None, 1, 1, 1 if stands else None]


# -- evidence that the core keeps -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before_ms", "proves"), [(219.0, False), (221.0, True)])
def test_kernel_counts_of_older_miss_are_no_evidence(before_ms: float, proves: bool) -> None:
    rig = Rig(on(12, Answer(error="no")))
    before_ns = START_NS + MS + round(before_ms * MS)
    rig.sample = EvidenceSample(threads=[ThreadReading("loop", "S", 0, 0, 3, 0)], before_ns=before_ns)
    rig.run(300)
    assert ("major_faults" in rig.ticks[12]["evidence"]["loop"]) is proves


def test_slow_texts_are_blamed_on_the_loop() -> None:
    rig = Rig()

    def read(data: Any) -> str:
        rig.now_ns += 15 * MS
        return "x"

    rig.read = read
    rig.decide = lambda request: Answer(go(), 8.0)
    assert set(rig.run(100).causes.values()) == {"decide.observe"}


def test_every_line_fits_its_schema() -> None:
    rig = Rig(
        lambda request: Answer(replace(go(request.tick % 3), kept={"arg1": "2"})), calls_per_tick=2, hysteresis=True
    )
    rig.wakes = {100: 45.0}
    rig.act_ms = lambda call: 30.0 if 60 < rig.ms < 80 else 0.1
    rig.at(210, lambda: rig.say("pause") and None).at(230, lambda: ev.NewInstruction("go left")).run(300)
    kinds = set()
    for line in rig.lines:
        kinds.add(topic := topic_of(line))
        jsonschema.validate(json.loads(json.dumps(line)), {**topic_schema(topic), "additionalProperties": False})
    assert {"/tick", "/further", "/observation", "/call", "/safe", "/late"} <= kinds
    assert rig.ticks[3]["kept"] == {"arg1": "2"}


# -- instructions, and worlds that wait -------------------------------------------------------------------------------


def test_instruction_changes_at_a_release() -> None:
    rig = Rig()
    rig.at(30, lambda: ev.NewInstruction("go left")).run(100)
    assert [request.instruction for request in rig.requests] == ["on", "on", "go left", "go left", "go left"]
    assert ev.Instruct("go left") in rig.actions and ev.LoopReport("accepted", "go left") in rig.actions
    assert [line["t_s"] for line in rig.lines if "instruction" in line and "k" not in line] == [0.04]


def test_refused_instruction_is_replaced_by_the_previous_one() -> None:
    refused = Answer(error="too long", more={"user_error": ("It is too long.", "Say less.")})
    rig = Rig(lambda request: refused if request.instruction == "long" else Answer(go()))
    rig.at(30, lambda: ev.NewInstruction("long")).run(100)
    assert rig.core.requests.instructions.now == "on" and ev.LoopReport("refused", "long", "too long") in rig.actions
    assert list(rig.causes) == [2]


def test_lockstep_waits_and_counts_late_decisions() -> None:
    decide = lambda request: Answer(go(request.tick % 3), 30.0 if request.tick % 4 == 1 else 5.0)  # noqa: E731
    quick = Rig(lambda request: Answer(go(request.tick % 3)), clock="lockstep", duration_ns=400 * MS).run(10_000)
    late = Rig(decide, clock="lockstep", duration_ns=400 * MS, max_age_ns=1).run(10_000)
    calls = [[(k, tick["call"]) for k, tick in rig.ticks.items()] for rig in (quick, late)]
    assert calls[0] == calls[1] and len(calls[0]) == 20
    assert late.causes == dict.fromkeys(range(1, 20, 4), "decide.decoder_slow") and set(late.kinds) == {"call"}
    assert "SAFE" not in [call for _, call in late.acts[:-1]]


def test_failing_safe_call_retries_each_lockstep_period() -> None:
    decide = lambda request: Answer(error="no") if request.tick >= 2 else Answer(go())  # noqa: E731
    rig = Rig(decide, clock="lockstep", on_miss="safe", duration_ns=140 * MS)
    rig.safe_fails = 3
    rig.run(10_000)
    assert [line["attempt"] for line in rig.lines_with("safe") if line["why"] == "miss"] == [1, 2, 3, 4]
    assert len(rig.ticks) == 7


def test_acknowledgements_during_reading_are_taken_next() -> None:
    """Acknowledgements of a client arrive on another thread, also while earlier ones are being read."""
    words = deque(Acknowledgement(k, "executed", None, 0) for k in range(3))
    rig = Rig()
    rig.core.requests.check_acknowledgements = lambda seen: words.extend([words_of_more] * len(list(seen)))  # type: ignore[method-assign]
    words_of_more = Acknowledgement(9, "executed", None, 0)
    rig.core._record_acknowledgements(words)
    assert [ack.tick for ack in words] == [9, 9, 9]
