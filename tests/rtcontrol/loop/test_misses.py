"""Faults that really happen, and what the record says of each tick that missed for them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cart import CartWorld, Flight, Scripted, cart_agent, good, slow
from linked import LinkedHost

from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, HostEvent
from rtcontrol.loop.command import SPANS, Tick
from rtcontrol.loop.evidence import EvidenceCollector, PauseWatch
from rtcontrol.loop.schedstat import SIZE, Threads, ran_and_delayed
from rtcontrol.models.call import Decision
from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.causes import CAUSES, Cause
from tests.helpers.processes import until

pytestmark = pytest.mark.realtime


def named(flight: Flight) -> dict[int, str]:
    """Of each tick that missed, what the record says in the end; every one with evidence, and as it is published."""
    said: dict[int, str] = {}
    for line in flight.lines:
        k = next((line[key] for key in ("k", "late", "overran", "revised") if key in line), None)
        if k is None or "cause" not in line:
            continue
        assert line["evidence"]["late_ms"] is not None
        cause, subcause = Cause(line["cause"]), line.get("subcause")
        known = CAUSES[cause].subcauses
        assert subcause in known if known else subcause is None
        said[k] = cause.value if subcause is None else f"{cause.value}.{subcause}"
    assert Counter(name.split(".")[0] for name in said.values()) == flight.loop.account.misses_by_cause
    assert Counter(n for n in said.values() if "." in n) == flight.loop.account.misses_by_subcause
    return said


def mostly(said: Iterable[str], *names: str, least: int = 1, others: int = 3) -> None:
    """A busy machine may add some that are its own, and says so, and a few besides."""
    counts = Counter(name for name in said if name in names or not name.startswith(("pause.", "wake.")))
    assert sum(counts[name] for name in names) >= least, counts
    assert all(counts[name] for name in names), counts
    assert sum(counts.values()) - sum(counts[name] for name in names) <= others, counts


def test_every_step_of_a_tick_has_its_stamp_in_order(tmp_path: Path) -> None:
    flight = Flight(tmp_path, host=LinkedHost(tmp_path)).run()
    on_time = [t for t in flight.ticks if t["kind"] == "call" and "cause" not in t]
    assert len(on_time) >= 15
    for tick in on_time:
        spans = tick["spans_ms"]
        assert tuple(spans) == SPANS
        # A request may have been taken in before the loop's thread was back from sending it.
        assert spans["text"] <= spans["received"] <= spans["begun"]
        order = [spans[name] for name in SPANS[1:] if name != "submitted"]
        assert order == sorted(order) and spans["captured"] < spans["submitted"] < spans["replied"]
        assert spans["executed"] == tick["latency_ms"] and spans["woke"] == tick["wake_ms"]
        assert spans["decided"] - spans["begun"] == pytest.approx(tick["decide_ms"], abs=1e-3)


def test_a_stopped_decoder_is_named_in_every_tick_that_it_cost(tmp_path: Path) -> None:
    host = LinkedHost(tmp_path)
    flight = Flight(tmp_path, host=host, duration_s=1.0)

    def stop() -> None:
        host.signal(signal.SIGSTOP)
        time.sleep(0.2)
        host.signal(signal.SIGCONT)

    flight.after(10, stop)
    flight.run()
    said = named(flight)
    mostly(said.values(), "decide.decoder_stopped", least=8)
    late = [line for line in flight.lines if line.get("subcause") == "decoder_stopped"]
    assert any(line["evidence"].get("decoder", {}).get("state") == "T" for line in late)
    # The decoder's own heartbeat tells of it, too.
    assert max(end - begin for begin, end in flight.loop._outcomes.evidence._heard) > 100e6


@pytest.mark.parametrize("how", ["sleep", "spin"])
def test_a_decoder_that_takes_its_time_is_slow_and_keeps_the_next_waiting(tmp_path: Path, how: str) -> None:
    agent = replace(cart_agent(), instruction=f"{how} 0.035 10")
    flight = Flight(tmp_path, host=LinkedHost(tmp_path), agent=agent, hz=50, duration_s=1.0).run()
    said = named(flight)
    slow = [k for k, name in said.items() if name == "decide.decoder_slow"]
    assert len([k for k in slow if k % 10 == 0]) >= 4, said
    mostly(said.values(), "decide.decoder_slow", least=4, others=7)
    assert "unknown" not in said.values()


def test_a_request_behind_a_slow_one_is_queued(tmp_path: Path) -> None:
    flight = Flight(tmp_path, slow(0.07, lambda tick: tick % 10 == 5), duration_s=1.0).run()
    said = named(flight)
    mostly(said.values(), "decide.decoder_slow", "decide.queued", least=8)
    assert all(said[k] == "decide.queued" for k in said if k % 10 == 6)


def test_a_decoder_that_was_killed_is_lost(tmp_path: Path) -> None:
    host = LinkedHost(tmp_path)
    flight = Flight(tmp_path, host=host)
    flight.after(10, lambda: host.signal(signal.SIGKILL))
    flight.run()
    mostly(named(flight).values(), "host.lost", least=8)


def test_a_decider_that_raises_is_an_error(tmp_path: Path) -> None:
    def decide(request: DecisionRequest) -> Decision:
        if request.tick == 5:
            raise RuntimeError("no")
        return good(request)

    flight = Flight(tmp_path, decide).run()
    assert named(flight)[5] == "decide.error"


def test_what_the_kernel_counted_since_an_older_miss_is_no_evidence(tmp_path: Path) -> None:
    def decide(request: DecisionRequest) -> Decision:
        if request.tick in (5, 12, 13):
            raise RuntimeError("no")
        return good(request)

    flight = Flight(tmp_path, decide).run()
    told = {line["k"]: "major_faults" in line["evidence"].get("loop", {}) for line in flight.ticks if "cause" in line}
    assert (told[12], told[13]) == (False, True), flight.dump()


def test_an_agent_that_reads_slowly_is_observe(tmp_path: Path) -> None:
    agent, looks = cart_agent(), iter(range(10**6))

    def observe(data: Any) -> str:
        if next(looks) % 10 == 9:
            time.sleep(0.05)
        return agent.observe(data)

    flight = Flight(tmp_path, agent=replace(agent, observe=observe), duration_s=1.0).run()
    said = named(flight)
    mostly(said.values(), "decide.observe", least=3)
    skipped = [t for t in flight.ticks if t.get("skip_subcause") == "observe"]
    assert {t["skip_cause"] for t in skipped} == {"decide"}
    assert all(t["skip_evidence"]["explained_ms"] >= t["skip_evidence"]["late_ms"] / 2 >= 10 for t in skipped)


def test_what_the_world_does_not_show(tmp_path: Path) -> None:
    world, agent = CartWorld(), cart_agent()
    flight = Flight(tmp_path / "silent", world=world)
    flight.after(12, lambda: setattr(world, "silent", True))
    flight.run()
    mostly(named(flight).values(), "no_observation.none_yet", least=5)

    world = CartWorld()
    flight = Flight(tmp_path / "frozen", world=world, max_age_ms=50)
    flight.after(10, lambda: setattr(world, "frozen", True))
    flight.run()
    mostly(named(flight).values(), "stale_observation.frozen", least=5)

    def blind(data: Any) -> str:
        raise KeyError("camera")

    flight = Flight(tmp_path / "blind", agent=replace(agent, observe=blind), warmup=0, duration_s=0.2).run()
    mostly(named(flight).values(), "no_observation.unreadable", least=8)


def test_an_executor_that_is_slow_keeps_the_next_calls_waiting(tmp_path: Path) -> None:
    world = CartWorld()
    world.on_execute = lambda call: time.sleep(0.1 if len(world.executed) == 5 else 0)
    flight = Flight(tmp_path, world=world).run()
    said = named(flight)
    mostly(said.values(), "execute.slow", "execute.busy", least=4)
    first = min(k for k, name in said.items() if name == "execute.slow")
    overran = next(line for line in flight.lines if line.get("overran") == first)
    assert overran["spans_ms"]["executed"] - overran["spans_ms"]["executing"] >= 100
    assert overran["evidence"]["late_ms"] >= 75


def test_an_executor_that_raises(tmp_path: Path) -> None:
    world = CartWorld()

    def burn(call: Any) -> None:
        if len(world.executed) == 5:
            raise OSError("fire")

    world.on_execute = burn
    flight = Flight(tmp_path, world=world).run()
    assert "execute.raised" in named(flight).values()


def test_a_tick_on_time_takes_no_notice_of_a_short_pause(tmp_path: Path) -> None:
    flight = Flight(tmp_path, slow(0.03, lambda tick: tick == 15), duration_s=0.5)
    watch = flight.loop._watch
    # A pause of 2 ms, far less than half of the lateness.
    flight.after(14, lambda: watch._collections.append((time.monotonic_ns(), time.monotonic_ns() + 2_000_000)))
    flight.run()
    assert named(flight).get(15) == "decide.decoder_slow", flight.dump()


def test_evidence_is_missing_and_not_wrong_where_the_kernel_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rtcontrol.loop.schedstat.PROC", tmp_path / "no proc")
    flight = Flight(tmp_path, slow(0.05, lambda tick: tick == 5)).run()
    assert named(flight)[5] == "decide.decoder_slow"
    missed = next(t for t in flight.ticks if t["k"] == 5)
    assert not {"loop", "decoder"} & set(missed["evidence"])


def test_a_slow_write_of_the_record_is_known_and_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rtcontrol.telemetry.recorder.SLOW_NS", -1)
    flight = Flight(tmp_path, slow(0.4, lambda tick: tick == 5)).run()
    assert flight.loop._watch.writes(0, time.monotonic_ns())
    missed = [t for t in flight.ticks if "cause" in t]
    assert any("slow_writes" in t["evidence"] for t in missed)
    assert {t["cause"] for t in missed} <= {"decide", "pause", "wake", "unknown"}


def test_the_kernel_tells_of_a_thread_that_works_and_of_one_that_sleeps() -> None:

    over, tids = threading.Event(), []

    def work() -> None:
        tids.append(threading.get_native_id())
        while not over.is_set():
            sum(range(1000))

    def rest() -> None:
        tids.append(threading.get_native_id())
        over.wait()

    for what in (work, rest):
        threading.Thread(target=what, daemon=True).start()
        until(lambda what=what: len(tids) == (1 if what is work else 2))
    threads = Threads()
    threads.follow([(os.getpid(), tid) for tid in tids])
    before = [ran_and_delayed(os.pread(fd, SIZE, 0)) for fd in threads.fds]
    time.sleep(0.1)
    after = [ran_and_delayed(os.pread(fd, SIZE, 0)) for fd in threads.fds]
    states = [look.state for look in threads.look()]
    over.set()
    threads.close()
    used = [sum(a) - sum(b) for a, b in zip(after, before, strict=True)]
    assert used[0] > 50e6 > 5e6 > used[1]
    assert states[1] == "S"


def test_a_reply_tells_of_ticks_whose_own_request_was_given_up() -> None:
    decoder: Any = SimpleNamespace(threads=[], gave_up=None, incarnation=0, alive=lambda: True, events=[])
    actuator: Any = SimpleNamespace(thread=None, doings=())
    witness = EvidenceCollector(PauseWatch(62_500_000), decoder, actuator)
    t0, ms = time.monotonic_ns() - 10**9, 1_000_000
    for k in range(3):
        tick = Tick(k, release_ns := t0 + k * 60 * ms, release_ns + 60 * ms, release_ns)
        fields = witness.attribute(tick, {"woke": 0.1, "text": 0.2, "submitted": 0.3}, tick.deadline_ns)
        assert fields["subcause"] == "decoder_slow"
    reply = DecisionReply(9, None, None, 0, gaps=[(t0 + 70 * ms, t0 + 175 * ms)])
    revised = dict(witness.hear(reply))
    assert {k: fields["subcause"] for k, fields in revised.items()} == {1: "decoder_stopped", 2: "decoder_stopped"}
    assert revised[1]["evidence"]["decoder_gaps"] == [[10.0, 60.0]]
    assert not list(witness.hear(reply)), "it is told once"
    # One that was under way then, and is named only now.
    tick = Tick(5, t0 + 100 * ms, t0 + 160 * ms, t0 + 100 * ms)
    fields = witness.attribute(tick, {"woke": 0.1, "text": 0.2, "submitted": 0.3}, tick.deadline_ns)
    assert fields["subcause"] == "decoder_stopped"


def test_requests_that_died_with_their_decoder_keep_nobody_waiting(tmp_path: Path) -> None:
    class Lossy(InProcessHost):
        """Loses the requests of a few ticks, and comes back, slow at first."""

        def submit(self, request: DecisionRequest) -> None:
            if request.tick == 8 and not self.incarnation:
                self.incarnation, now = 1, time.monotonic_ns()
                self.events += [HostEvent(now, "lost", 0.0), HostEvent(now, "restarted", 0.0)]
            elif not 5 <= request.tick <= 8:
                super().submit(request)

    host = Lossy(Scripted(slow(0.05, lambda tick: tick == 9)))
    flight = Flight(tmp_path, host=host, late="use").run()
    assert named(flight)[8] == "host.lost"
    first = {t["k"]: t.get("subcause") for t in flight.ticks}  # later ones know more
    assert first[9] == "decoder_slow", first


def test_what_the_kernel_counted_of_other_threads_is_no_evidence() -> None:
    over = threading.Event()
    deciding = [threading.Thread(target=over.wait, daemon=True) for _ in range(2)]
    for thread in deciding:
        thread.start()
    host: Any = SimpleNamespace(
        threads=[(os.getpid(), deciding[0].native_id)], gave_up=None, incarnation=0, alive=lambda: True, events=[]
    )
    actuator: Any = SimpleNamespace(thread=None, doings=())
    witness = EvidenceCollector(PauseWatch(62_500_000), host, actuator)

    def told(k: int) -> dict[str, Any]:
        now = time.monotonic_ns()
        tick = Tick(k, now - 70_000_000, now - 10_000_000, now - 70_000_000, incarnation=0)
        tick.runs = runs
        spans = {"woke": 0.1, "text": 0.2, "submitted": 0.3}
        return witness.attribute(tick, spans, now)

    witness.follow()
    runs = tuple(os.pread(fd, SIZE, 0) for fd in witness.threads.fds)
    assert {"ran_ms", "delayed_ms"} <= set(told(1)["evidence"]["decoder"])
    host.threads, host.incarnation = [(os.getpid(), deciding[1].native_id)], 1
    witness.follow()
    told_of = told(2)["evidence"]
    assert not {"ran_ms", "delayed_ms"} & set(told_of["decoder"]) and "ran_ms" in told_of["loop"]
    host.incarnation, host.alive = 0, lambda: setattr(host, "incarnation", 1) is None
    assert told(3)["subcause"] == "lost", "a standby takes over when the host is asked"
    over.set()
    witness.close()


def test_a_short_pause_is_not_why_an_observation_is_old() -> None:
    host: Any = SimpleNamespace(threads=[], gave_up=None, incarnation=0, alive=lambda: True, events=[])
    watch, ms = PauseWatch(62_500_000), 1_000_000
    witness = EvidenceCollector(watch, host, SimpleNamespace(thread=None, doings=()))  # type: ignore[arg-type]
    witness.usual.append({"captured": -5.0, "woke": 0.1})
    now = time.monotonic_ns()
    tick = Tick(9, now, now + 60 * ms, now, capture_ns=now - 262 * ms)
    for length, name in ((27, "stale_observation"), (140, "pause")):
        watch._gaps.append((now - (30 + length) * ms, now - 30 * ms))
        assert witness.attribute(tick, {"woke": 0.0}, now, (Cause.STALE_OBSERVATION, "frozen"))["cause"] == name


def test_a_later_word_moves_a_miss_to_another_cause() -> None:
    account = Account()
    tick = {"k": 3, "kind": "miss", "t_s": 1.0, "superseded": 0, "cause": "decide", "subcause": "decoder_slow"}
    account.add(tick)
    account.add({"revised": 3, "cause": "decide", "subcause": "decoder_stopped", "t_s": 1.2})
    account.add({"late": 3, "used": False, "cause": "pause", "subcause": "gc"})
    assert account.misses_by_cause == {"pause": 1} and account.misses_by_subcause == {"pause.gc": 1}
    account.add({"revised": 9, "cause": "host", "t_s": 1.3})
    account.check()


def test_a_safe_calls_acknowledgement_is_not_its_ticks() -> None:
    account = Account()
    for k in (1, 2):
        account.add({"k": k, "kind": "call", "call": "go()", "t_s": 1.0, "superseded": 0})
    account.add({"ack": 1, "why": "safe", "status": "failed", "t_s": 1.1})
    account.add({"ack": 2, "why": "fresh", "status": "refused", "t_s": 1.1})
    assert (account.on_time, account.misses) == (1, 1)
    assert account.misses_by_subcause == {"execute.refused": 1}
    account.check()
