"""The ticks of a crowd by a fake clock: accounts add up, members get their own calls, and each is safe in time."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol import records as ev
from rtcontrol.hosts.deciders import crowd_source, reply_of
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, HostEvent
from rtcontrol.hosts.remote_api import EndpointSource
from rtcontrol.loop.active import FallbackPolicy
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.rules import rules_of, settings_of
from rtcontrol.models.call import Call, Decision
from rtcontrol.records import HostChanged, OperatorCommand
from rtcontrol.serve.crowd import members
from rtcontrol.serve.crowd.core import MIN_TIMERS, TIME_SHARE, BatchQueue, CrowdCore, SendCalls, SendError, choose_batch
from rtcontrol.serve.crowd.loop import MAX_INBOX, MAX_INBOX_BYTES, CrowdLoop
from rtcontrol.serve.crowd.members import (
    MAX_PERIODS,
    CrowdMember,
    MemberObservation,
    Members,
    MemberTerms,
    MemberTick,
    crowd_terms,
)
from rtcontrol.serve.crowd.session import CrowdSession
from rtcontrol.telemetry import report
from rtcontrol.telemetry.account import Account
from rtcontrol_client.wire import WireError
from rtcontrol_client.wire.messages import CrowdRequest, Join, Leave, Member, MemberCall, ObservationPart, ObserveMany
from tests.rtcontrol.serve.test_negotiate import terms
from tests.simulation.crowd import AGENT, call_of, terms_of

MS = 1_000_000
NAMES = ("anna", "bert", "carl", "dora", "emil")
TOKEN = "t" * 16


class Script:
    """A decider whose result depends on the text: bad, odd (an illegal call), null, unsure, or a member's name."""

    def decide(self, request: DecisionRequest) -> Decision:
        text = request.observation
        if text.startswith("bad"):
            raise ValueError("no one knows what to do")
        call = None if text.startswith("null") else call_of(text)
        call = Call("engines", {"main": 1, "side": 0}) if text.startswith("odd") else call
        return Decision(call, {"function": 0.2 if text.startswith("unsure") else 0.9})


@dataclass
class CrowdBench:
    """A crowd's core by a fake clock, with a decoder that takes `slow_ms` for a batch, and all results."""

    slow_ms: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    now: int = 10**12
    calls: list[MemberCall] = field(default_factory=list)
    sent_ns: list[int] = field(default_factory=list)  # when each was
    refused: list[WireError] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    broken: Exception | None = None  # what `submit` raises
    pending: tuple[int, DecisionReply] | None = None
    seq: int = 0

    def __post_init__(self) -> None:
        given = {"hz": 50, "max_age_ms": 80, "hold_ms": 60, "min_confidence": 0.5, **self.options}
        config = RunConfig(env="remote", model="expert", agent="lander", **given)
        self.core = CrowdCore(Members(terms_of(config)), settings_of(config, AGENT), rules_of(config, AGENT))
        self.decider = crowd_source(ScriptSource()).build()
        self.account = Account()
        self.account.add({"header": config.header(60.0, AGENT)})

    def handle(self, event: Any) -> None:
        events = deque([event])
        while events:
            for action in self.core.advance(events.popleft(), self.now):
                if isinstance(action, DecisionRequest):
                    events.append(ev.SendResult(self.broken))
                    if self.broken is None:
                        due_ns = self.now + round(self.slow_ms * MS)
                        self.pending = due_ns, replace(reply_of(self.decider, action), decide_ns=2 * MS)
                elif isinstance(action, SendCalls):
                    self.calls += action.calls
                    self.sent_ns += [self.now] * len(action.calls)
                elif isinstance(action, SendError):
                    self.refused.append(action.error)
                elif isinstance(action, ev.RecordLine):
                    self.lines.append(action.line)
                    self.account.add(action.line)
                elif isinstance(action, ev.CancelRequest):
                    self.cancelled.append(action.k)

    def wait(self, ms: float) -> None:
        """Let `ms` milliseconds pass, as the loop's thread does."""
        end_ns = self.now + round(ms * MS)
        self.handle(ev.TimerFired())
        while True:
            wake_ns = self.core.wake_ns
            due_ns = min(end_ns + 1 if wake_ns is None else wake_ns, self.pending[0] if self.pending else end_ns + 1)
            if due_ns > end_ns:
                break
            self.now = max(self.now, due_ns)
            if self.pending is not None and self.pending[0] <= self.now:
                reply, self.pending = self.pending[1], None
                self.handle(reply)
            self.handle(ev.TimerFired())
        self.now = end_ns

    def join(self, *members: str | dict[str, Any]) -> None:
        given = [{"id": item} if isinstance(item, str) else item for item in members]
        self.handle(Join(session=TOKEN, members=[Member(**item) for item in given]))

    def see(self, **texts: str) -> None:
        self.seq += 1
        looks = [ObservationPart(id=name, seq=self.seq, t_ns=self.seq, text=text) for name, text in texts.items()]
        self.handle(ObserveMany(session=TOKEN, looks=looks))

    def say(self, word: str) -> None:
        self.handle(OperatorCommand(word, "page", self.now))

    def of(self, name: str) -> list[tuple[str, str | None]]:
        """Return status and cause of each call that a member received."""
        return [(call.status, call.cause) for call in self.calls if call.id == name]

    def ticks(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line.get("kind") and line.get("member") == name]

    def end(self) -> dict[str, Any]:
        """End the crowd, and return the report."""
        self.handle(ev.StopRequested("over"))
        self.account.assert_consistent()
        return report.build_report(self.account, "record.mcap")


@dataclass(frozen=True)
class ScriptSource:
    def build(self) -> Script:
        return Script()


def test_decision_of_an_earlier_epoch_is_not_sent() -> None:
    bench = CrowdBench(slow_ms=20)
    bench.core.queue.max_size = 8
    bench.join(*({"id": name, "hz": 1} for name in NAMES[:3]))
    bench.see(**{name: f"moved {name}" for name in NAMES[:3]})
    bench.wait(5)
    batch = bench.core.queue.batch
    over, *others = [(tick.member.id, tick.k) for tick in batch]
    bench.join({"id": over[0], "epoch": 1, "hz": 1})
    bench.wait(100)
    assert [(call.id, call.tick) for call in bench.calls] == others
    assert bench.core.queue.late_dropped == 1


def test_failed_request_misses_only_its_own_ticks() -> None:
    bench = CrowdBench()
    bench.join("anna")
    bench.broken = RuntimeError("the pipe is gone")
    bench.see(anna="moved")
    bench.wait(1)
    (line,) = bench.ticks("anna")
    assert (line["cause"], line["subcause"], line["error"]) == (
        "decide",
        "send",
        "submit: RuntimeError: the pipe is gone",
    )
    assert bench.of("anna") == [("safe", "decide")]
    bench.broken = None
    bench.wait(60)
    assert bench.of("anna")[-1] == ("fresh", None)


def test_hold_ends_with_safe_call_even_mid_tick() -> None:
    separate = {"name": "engines", "arguments": {"main": 100, "side": 0}}
    bench = CrowdBench(options={"hz": 20, "hold_ms": 180, "max_age_ms": 2000})
    bench.join({"id": "anna", "safe_calls": [separate]})
    bench.see(anna="moved")
    bench.wait(1)
    bench.slow_ms = 1000
    bench.see(anna="moved on")
    bench.wait(178)
    assert bench.of("anna") == [("fresh", None), ("held", "decide"), ("held", "decide")]
    bench.wait(2)
    safe = bench.calls[-1]
    assert safe.status == "safe" and safe.calls is not None and safe.calls[0].arguments == separate["arguments"]
    assert bench.sent_ns[-1] == bench.sent_ns[0] + 180 * MS
    assert bench.pending is not None
    bench.pending = bench.now + MS, bench.pending[1]  # the tick is still open, and its decision is newer
    bench.wait(2)
    assert bench.of("anna")[4:] == [("fresh", None)] and bench.calls[-1].tick > safe.tick
    assert bench.calls[-1].tick == bench.ticks("anna")[-1]["k"]


def test_call_that_needs_confirmation_is_held_back() -> None:
    bench = CrowdBench(options={"confirm": ["engines"]})
    bench.join("anna")
    bench.see(anna="moved")
    bench.wait(2)
    assert bench.of("anna") == [("safe", "confirm")]


def test_stale_observation_misses_and_bad_is_reported_once() -> None:
    bench = CrowdBench()
    bench.join("anna", "bert")
    bench.see(anna="bad look", bert="odd look")
    bench.wait(150)
    causes = [line["cause"] for line in bench.ticks("anna")]
    assert causes[0] == "decide" and causes[-1] == "stale_observation"
    assert bench.ticks("bert")[0]["cause"] == "invalid"
    assert len(bench.refused) == 1 and bench.refused[0].members is not None
    assert [(item.id, item.code) for item in bench.refused[0].members] == [("anna", "decoder")]


def test_pause_makes_members_safe_until_resume() -> None:
    bench = CrowdBench(slow_ms=5)
    bench.join({"id": "anna", "every_tick": True})
    bench.see(anna="moved")
    bench.wait(27)
    bench.say("pause")
    bench.wait(60)
    assert bench.of("anna")[-1] == ("safe", "pause") and bench.cancelled
    assert (bench.ticks("anna")[-1]["kind"], bench.ticks("anna")[-1]["why"]) == ("held", "paused")
    result = len(bench.calls)
    bench.see(anna="moved on")
    bench.wait(60)
    assert len(bench.calls) == result
    bench.say("resume")
    bench.wait(30)
    assert bench.of("anna")[-1] == ("fresh", None)
    assert [line["people"] for line in bench.lines if "people" in line] == ["pause", "resume"]


def test_instruction_becomes_goal_of_every_member() -> None:
    bench = CrowdBench()
    bench.join({"id": "anna", "instruction": "land"})
    bench.handle(ev.NewInstruction("hover"))
    bench.join("bert")
    bench.see(anna="moved", bert="moved")
    bench.wait(30)
    assert {line["instruction"] for line in bench.lines if "observation" in line} == {"hover"}


@pytest.mark.parametrize(("back", "cause"), [(False, ("host", "lost")), (True, ("host", "restarting"))])
def test_lost_decoder_causes_misses_that_name_it(back: bool, cause: tuple[str, str]) -> None:
    bench = CrowdBench(slow_ms=15)
    bench.join("anna")
    bench.see(anna="moved")
    bench.wait(1)
    bench.pending = None
    lost = (HostEvent(bench.now, "lost", 0.0),)
    bench.handle(HostChanged(False, 0, None, lost))
    bench.wait(17)
    if back:
        bench.handle(HostChanged(True, 1, None, (*lost, HostEvent(bench.now, "restarted", 0.1))))
    bench.wait(4)
    (line,) = bench.ticks("anna")
    assert (line["cause"], line["subcause"]) == cause
    assert [event["event"] for item in bench.lines if (event := item.get("host_event"))] == ["lost", "restarted"][
        : 1 + back
    ]


def test_batch_whose_ticks_all_ended_is_cancelled() -> None:
    bench = CrowdBench(slow_ms=500)
    bench.join("anna")
    bench.see(anna="moved")
    bench.wait(30)
    assert bench.cancelled == [1]
    assert (bench.ticks("anna")[0]["cause"], bench.ticks("anna")[0]["subcause"]) == ("decide", "decoder_slow")


def test_old_epochs_and_members_beyond_limit_are_refused() -> None:
    bench = CrowdBench()
    bench.core.members.limit = 2
    bench.join({"id": "anna", "epoch": 3}, "bert")
    bench.join({"id": "anna", "epoch": 2}, "carl", {"id": "bert", "hz": 5})
    (refused,) = bench.refused
    assert refused.members is not None
    assert [(item.id, item.code, item.field) for item in refused.members] == [
        ("anna", "epoch", "epoch"),
        ("carl", "busy", "id"),
    ]
    members = bench.core.members.by_id
    assert members["anna"].epoch == 3 and members["bert"].terms.period_ns == 200 * MS


def test_member_of_returned_client_waits_for_observation() -> None:
    bench = CrowdBench(slow_ms=5)
    bench.join("anna")
    bench.see(anna="moved")
    bench.wait(2)
    bench.core.members.by_id["anna"].forget_observations()
    bench.core = CrowdCore(bench.core.members, bench.core.settings, bench.core.rules, bench.core.k)
    bench.wait(60)
    assert not bench.calls
    bench.see(anna="bad")
    bench.wait(10)
    assert bench.of("anna") == [("safe", "decide")] and bench.calls[0].tick == 1


def test_members_memory_is_bounded_and_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MAX_BYTES", 1 << 20)
    bench = CrowdBench()
    names = [f"m{i}" for i in range(60)]
    bench.join(*names)
    bench.see(**{name: f"{name} " * 10_000 for name in names[:20]})
    assert not bench.refused
    bench.see(**{name: f"{name} " * 10_000 for name in names[20:]})
    bench.join({"id": "new", "instruction": "go " * 20_000}, "other")
    looks, joins = bench.refused
    assert looks.code == "too_large" and "1 MiB" in looks.members[0].message
    assert [item.id for item in joins.members] == ["new"]
    bench.handle(Leave(session=TOKEN, ids=names[:-1]))
    bench.see(**{names[-1]: "near"})
    assert len(bench.refused) == 2 and bench.core.members._bytes < 1000


def test_timers_of_members_that_left_are_removed() -> None:
    bench = CrowdBench(options={"hz": 0.01})
    for _ in range(1000):
        bench.join("anna")
        bench.see(anna="moved")
        bench.wait(1)
        bench.handle(Leave(session=TOKEN, ids=["anna"]))
    assert len(bench.core.timers._heap) <= MIN_TIMERS


def test_excess_messages_are_refused_but_commands_accepted() -> None:
    host: Any = SimpleNamespace(wake=lambda: None)
    loop = CrowdLoop(CrowdBench().core, host, cast(Any, SimpleNamespace(header={})), lambda action: None)
    for _ in range(MAX_INBOX):
        loop.enqueue_message(Leave(session=TOKEN, ids=[]))
    with pytest.raises(WireError, match="256 messages of this crowd"):
        loop.enqueue_message(Leave(session=TOKEN, ids=[]))
    loop._inbox.clear()
    large = Join(session=TOKEN, members=[Member(id="anna", instruction="x" * 65_000)])
    with pytest.raises(WireError, match="messages of this crowd"):
        for _ in range(MAX_INBOX_BYTES // 65_000 + 1):
            loop.enqueue_message(large)
    loop.enqueue_event(OperatorCommand("pause", "page", 0))


@pytest.mark.parametrize(
    ("fields", "says"),
    [({"pacing": "client"}, "cannot have pacing 'client'"), ({"calls_per_tick": 2}, "cannot have calls_per_tick 2")],
)
def test_crowd_refuses_settings_of_a_single_loop(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(WireError, match=says):
        crowd_terms(terms(crowd=CrowdRequest(), **fields))


def test_crowd_terms_refuse_endpoints_and_warn() -> None:
    negotiated = terms(crowd=CrowdRequest(members=7), capabilities=["executed", "pictures"])
    elsewhere = replace(negotiated, source=EndpointSource("chat", "http://127.0.0.1:1", "any", ()))
    with pytest.raises(WireError, match="cannot decide for a crowd"):
        crowd_terms(elsewhere)
    config = replace(negotiated.config, hysteresis="margin=0.2", interpreter="chat:x", confirm=("engines",))
    crowd = crowd_terms(replace(negotiated, config=config))
    assert crowd.crowd is not None and crowd.crowd.members == 7
    assert (crowd.config.hysteresis, crowd.config.interpreter) == (None, None)
    new = crowd.warnings[len(negotiated.warnings) :]
    for word in ("executed, pictures, interpreter, hysteresis", "engines are withheld"):
        assert any(word in warning for warning in new), word


# Who of a crowd is decided for now: earliest deadline, then priority; nobody is forgotten.


def member(serial: int, priority: int = 0, **terms: Any) -> CrowdMember:
    given = {"instruction": "go", "period_ns": 200 * MS, "deadline_ns": 200 * MS, "ttl_ms": 900.0}
    given |= {"every_tick": False, "safe_calls": None, **terms}
    item = MemberTerms(priority=priority, **given)  # type: ignore[arg-type]
    return CrowdMember(str(serial), 0, item, serial, FallbackPolicy("hold", 0), deque(maxlen=1))


def tick(serial: int, deadline_ms: int, priority: int = 0, served: int = 0) -> MemberTick:
    item = member(serial, priority)
    item.served = served
    return MemberTick(serial, 0, deadline_ms * MS, 0, member=item)


ticks = st.lists(
    st.builds(tick, st.integers(1, 99), st.integers(-50, 400), st.integers(0, 9), st.integers(0, 3)),
    max_size=30,
    unique_by=lambda item: item.k,
)


@given(ticks, st.integers(0, 60), st.integers(0, 60), st.integers(1, 64))
def test_batch_has_most_urgent_ticks_that_can_be_in_time(
    waiting: list[MemberTick], alone_ms: int, more_ms: int, most: int
) -> None:
    expected: Callable[[int], float] = lambda n: (alone_ms + (n - 1) * more_ms) * MS  # noqa: E731
    batch = choose_batch(waiting, 0, expected, most)
    chosen = {t.k for t in batch}
    assert len(batch) <= most and chosen <= {t.k for t in waiting}
    # An empty batch, where the first one alone is too much: gittensor-ai-lab/sparkinfer#217.
    assert batch or all(t.deadline_ns <= 0 for t in waiting)
    able = [t for t in waiting if alone_ms * MS <= t.deadline_ns]
    if len(batch) > 1:
        assert expected(len(batch)) <= TIME_SHARE * min(t.deadline_ns for t in batch)
    if able and expected(len(able)) <= max(t.deadline_ns for t in able):
        assert all(now.deadline_ns <= later.deadline_ns for now in batch for later in able if later.k not in chosen)


def test_overload_serves_the_highest_priority() -> None:
    waiting = [tick(i, 30 + i, priority=9 * (i == 3)) for i in range(4)]
    assert [t.k for t in choose_batch(waiting, 0, lambda n: 12.0 * n * MS, 64)] == [3]


# Requests of a low priority never had their turn: kubernetes/kubernetes#86373, volcano-sh/volcano#748.
def test_overload_starves_none_of_equal_priority() -> None:
    members, numbers = [member(i) for i in range(10)], itertools.count(1)
    served = dict.fromkeys(range(10), 0)
    for _ in range(100):
        waiting = [MemberTick(i, 0, 200 * MS, 0, member=item) for i, item in enumerate(members)]
        for item in choose_batch(waiting, 0, lambda n: 30.0 * n * MS, 64):
            item.member.served = next(numbers)
            served[item.k] += 1
    assert max(served.values()) - min(served.values()) <= 1


def test_late_batch_is_halved_and_grows_again() -> None:
    times = BatchQueue()
    shown = []
    for _ in range(12):
        shown.append(count := min(64, times.max_size))
        times.record_time(count, 1, late=False)
    assert shown[-1] == 64
    for _ in range(7):
        times.record_time(min(64, times.max_size), 1, late=True)
    assert times.max_size == 1
    for _ in range(40):
        times.record_time(times.max_size, 1, late=False)
    assert times.max_size > 32


def test_resting_member_is_released_within_half_its_ttl() -> None:
    item = member(1, ttl_ms=1200.0)
    item.newest = MemberObservation(1, 0, 0, "still", None)
    item.decided = "still", "go"
    periods = []
    for _ in range(6):
        item.update_rate(has_decision=True)
        periods.append(item.period_ns // MS)
    assert periods == [400, 600, 600, 600, 600, 600] and item.periods == MAX_PERIODS
    item.newest = MemberObservation(2, 0, 0, "moved", None)
    assert not item.is_unchanged
    assert not member(2, every_tick=True).is_unchanged


def test_repeated_instructions_keep_the_agenda_small() -> None:
    bench = CrowdBench()
    bench.join("a", "b")
    bench.see(a="x", b="x")
    bench.handle(ev.NewInstruction("hover"))
    entries = len(bench.core.timers._heap)
    for _ in range(100):
        bench.handle(ev.NewInstruction("land"))
    assert len(bench.core.timers._heap) == entries


def test_crowd_is_paused_and_stopped_but_never_confirmed() -> None:
    events, posted = list[Any](), list[Any]()
    session = CrowdSession(
        cast(Any, SimpleNamespace(id="crowd", token=TOKEN)), cast(Any, SimpleNamespace(handle=events.append))
    )
    loop = SimpleNamespace(enqueue_event=posted.append, ended_by=None)
    loop.stop = lambda why: setattr(loop, "ended_by", why)
    session.crowd = cast(Any, loop)
    assert session.command_loop("pause", "wire", None) == "pause (wire)" and posted[-1].word == "pause"
    assert "cannot confirm calls" in session.command_loop("confirm", "wire", 3)
    session.command_loop("stop", "wire", None)
    assert "final" in session.command_loop("resume", "wire", None)
    assert [event.message.state for event in events] == ["paused", "stopped"] and len(posted) == 2
