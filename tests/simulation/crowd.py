"""Simulate a crowd: the real core and loop of a crowd, a decoder with faults, and a judge of the laws.

`python -m tests.simulation.crowd SEED` shows what a seed does.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from rtcontrol.drill.simulation.campaign import SimTally, without_garbage_collection
from rtcontrol.drill.simulation.decoder import SimDecoder, SimHost
from rtcontrol.drill.simulation.faults import Faults, SimFault
from rtcontrol.drill.simulation.referee import Violation
from rtcontrol.drill.simulation.run import simulated_clock
from rtcontrol.drill.simulation.timeline import MS, START_NS, US, Process, S, SimTimeline, Thread
from rtcontrol.hosts.deciders import reply_of
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.rules import rules_of, settings_of
from rtcontrol.models.call import Call, Decision
from rtcontrol.records import OperatorCommand
from rtcontrol.run import assembly
from rtcontrol.serve.crowd.core import CrowdCore, SendCalls
from rtcontrol.serve.crowd.loop import CrowdLoop
from rtcontrol.serve.crowd.members import Members
from rtcontrol.telemetry.account import Account
from rtcontrol_client.wire import Message
from rtcontrol_client.wire.messages import Join, Leave, Member, MemberCall, ObservationPart, ObserveMany

TOKEN = "s" * 16
PERIODS = 300
KINDS = (
    "slow_decoder",
    "decider_raises",
    "invalid_call",
    "send_raises",
    "duplicate",
    "stray",
    "lost_in_transit",
    "delivered_late",
)
KINDS += ("stop_decoder", "kill_decoder", "stop_loop", "starve_loop", "frozen", "pause")
# A crowd's loop takes no samples: whatever kept its thread away is the same to it.
AWAY = ("wake.scheduler", "decide.decoder_slow", "decide.queued")
WORDS = {"stop_loop": AWAY, "starve_loop": AWAY}
SOON_NS = 2 * MS
AGENT = replace(assembly.load_agent("lander"), observe=lambda data: str(data.text))


def call_of(text: str) -> Call:
    """Return a call that contains the number of its observation."""
    number = zlib.crc32(text.encode())
    return Call("engines", {"main": (0, 50, 60, 70, 80, 90, 100)[number % 7], "side": 50 * (number // 7 % 5 - 2)})


def terms_of(config: RunConfig) -> Any:
    """Return the negotiated settings of a session that a crowd uses."""
    hello, options, crowd = SimpleNamespace(ttl_ms=None), SimpleNamespace(hz_max=100.0), SimpleNamespace(members=64)
    hold_ms = config.hold_ms or 0.0
    return SimpleNamespace(agent=AGENT, config=config, hello=hello, options=options, crowd=crowd, hold_ms=hold_ms)


class CrowdDecoder(SimDecoder):
    """A decider of batches: for each member the call for its observation, no call, or an unsure one. A call may be
    illegal."""

    request = DecisionRequest(-1, -1, "[]", "")
    illegal = False

    def _decide(self, request: DecisionRequest, received_ns: int) -> None:
        self.request = request
        super()._decide(request, received_ns)

    def _make_decision(self, kind: str | None) -> tuple[Decision | None, str | None, str | None]:
        if kind == "decider_raises":
            return super()._make_decision(kind)
        self.illegal = kind == "invalid_call"
        return None, None, None

    def _deliver(self, reply: DecisionReply, fault: SimFault | None) -> None:
        members = () if reply.error else reply_of(self, self.request).members
        super()._deliver(replace(reply, members=members), fault)

    def decide(self, request: DecisionRequest) -> Decision:
        if self.illegal:
            self.illegal = False
            return Decision(Call("explode"))
        if self.rng.random() < 0.1:
            return Decision(None)
        return Decision(call_of(request.observation), {"function": 0.2 if self.rng.random() < 0.05 else 0.9})


class CrowdHost(SimHost):
    """A host that advances simulated time while the crowd's loop waits."""

    def __init__(self, time: SimTimeline, decoder: CrowdDecoder, thread: Thread) -> None:
        super().__init__(time, [decoder], None)
        self._thread = thread

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        self._thread.sleep(self.time.now_ns + timeout_ns, self.replies)
        return super().wait(0)


@dataclass
class Life:
    """A life of a member from the view of its client: its observations by number, and the active call."""

    member: Member
    looks: dict[int, str] = field(default_factory=dict)
    tick: int = -1
    status: str = "none"
    renewed_ns: int = 0

    @property
    def period_ns(self) -> int:
        return round(1e9 / (self.member.hz or 1))


class SimCrowd:
    """The simulation of a seed: members join, leave, start new lives, and observe their world. Raises Violation if a
    law is broken."""

    trace = False

    def __init__(self, seed: int) -> None:
        self.time = time = SimTimeline(seed)
        self.chance = chance = random.Random(f"{seed} crowd")
        hz = chance.choice((5, 10, 20))
        self.period_ns = S // hz
        options: dict[str, Any] = {"hz": hz, "on_miss": chance.choice(("hold", "hold", "safe")), "min_confidence": 0.5}
        options |= {"hold_ms": chance.choice((0.0, 0.5, 1.5, 4.0)) * 1e3 / hz, "max_age_ms": 2.5e3 / hz}
        self.config = RunConfig(env="remote", model="expert", agent="lander", **options)
        kinds = KINDS if chance.random() < 0.3 else (chance.choice(KINDS),)
        self.faults = Faults(time, self.period_ns, kinds, chance.uniform(5.0, 10.0))
        self.process = Process(time)
        self.thread = Thread(self.process, time.rng("loop"))
        usual_ns = self.period_ns // 40 + 50 * US, self.period_ns // 12
        self.decoder = CrowdDecoder(time, self.faults, usual_ns, self.period_ns, 1)
        self.lives: dict[str, Life] = {}
        self.account, self.causes = Account(), Counter[str]()
        self.paused = False
        self.loop = self._assemble()
        begin = {"stop_decoder": self.decoder.freeze_until_end, "kill_decoder": self.decoder.kill, "pause": self._pause}
        self.faults.effects |= {**begin, "stop_loop": self._away, "starve_loop": self._away}
        self.faults.effects["stray"] = lambda fault: self.decoder.send_stray_reply()

    def _assemble(self) -> CrowdLoop:
        settings, rules = settings_of(self.config, AGENT), rules_of(self.config, AGENT)
        core = CrowdCore(Members(terms_of(self.config)), settings, rules)
        recorder = cast(Any, SimpleNamespace(header=self.config.header(0.0, AGENT), write=self._write, fold=None))
        host = cast(Any, CrowdHost(self.time, self.decoder, self.thread))
        return CrowdLoop(core, host, recorder, self._on_action)

    def fly(self, periods: int) -> None:
        with simulated_clock(self.time):
            for i in range(self.chance.randrange(2, 9)):
                self._join(f"m{i}", 0)
            self.account.add({"header": self.config.header(0.0, AGENT)})
            self.faults.start()
            self._step()
            self.time.at(self.time.now_ns + periods * self.period_ns, lambda: self.loop.stop("over"))
            self.loop.run()
        self.account.assert_consistent()
        for name, life in self.lives.items():
            if life.tick >= 0 and life.status != "safe":
                self.fail(f"{name} is {life.status} after the end")

    def fail(self, what: str) -> None:
        raise Violation(f"at {(self.time.now_ns - START_NS) / 1e9:.6f} s: {what}")

    # -- the client ----------------------------------------------------------------------------------------------------

    def _post(self, message: Message) -> None:
        self.process.at(self.time.now_ns + 100 * US, lambda: self.loop.enqueue_message(message))

    def _join(self, name: str, epoch: int) -> None:
        hz = self.config.hz / self.chance.choice((1, 1, 2))
        member = Member(id=name, epoch=epoch, hz=hz, every_tick=self.chance.random() < 0.7)
        self.lives[name] = Life(member)
        self._post(Join(session=TOKEN, members=[member]))

    def _step(self) -> None:
        """Let all members observe unless their worlds are frozen. At times a member leaves, or starts another life."""
        looks = []
        for name, life in self.lives.items():
            seq = len(life.looks) + 1
            text = f"{name} {life.member.epoch} {seq // self.chance.choice((1, 8))}"
            if self.faults.active("frozen") is None:
                looks.append(ObservationPart(id=name, seq=seq, t_ns=seq, text=text))
                life.looks[seq] = text
        self._post(ObserveMany(session=TOKEN, looks=looks))
        if self.chance.random() < 0.02:
            name = self.chance.choice(list(self.lives))
            if again := self.chance.random() < 0.5:
                self._post(Leave(session=TOKEN, ids=[name]))
            self._join(name, self.lives[name].member.epoch + (not again) + 1)
        self.time.at(self.time.now_ns + self.period_ns // 2, self._step)

    def _away(self, fault: SimFault) -> None:
        if fault.kind.name == "stop_loop":
            self.process.freeze(fault.end_ns - self.time.now_ns)
        else:
            self.thread.starved_ns = fault.end_ns
        fault.extend_to(fault.end_ns + self.period_ns)

    def _pause(self, fault: SimFault) -> None:
        self.faults.take_pending("pause")
        for word, later in (("pause", 0), ("resume", self.chance.randrange(1, 4) * self.period_ns)):
            command = OperatorCommand(word, "sim", self.time.now_ns + later)
            self.process.at(command.t_ns, lambda command=command: self.loop.enqueue_event(command))

    # -- the referee ---------------------------------------------------------------------------------------------------

    def _on_action(self, action: Any) -> None:
        if isinstance(action, SendCalls):
            for call in action.calls:
                life = self.lives.get(call.id)
                if life is not None and call.epoch == life.member.epoch:
                    self._judge(life, call)

    def _judge(self, life: Life, call: MemberCall) -> None:
        """Judge a call that the client of a member receives."""
        now, hold_ns = self.time.now_ns, round((self.config.hold_ms or 0) * MS)
        if call.tick <= life.tick:
            self.fail(f"{call.id} is told of tick {call.tick} after {life.tick}")
        life.tick = call.tick
        if call.status == "held":
            if life.status == "safe" or now > life.renewed_ns + hold_ns:
                self.fail(f"{call.id} is held beyond its limit, or after the safe call")
            self.time.at(life.renewed_ns + hold_ns + SOON_NS, partial(self._safe_by, life, life.renewed_ns))
        elif call.status == "fresh":
            text = life.looks[call.seq_obs or 0]
            if call.call is not None and call.call.arguments != call_of(text).arguments:
                self.fail(f"{call.id} has a call that is not of its look")
            if call.call is not None and (call.confidence or 0.0) < 0.5:
                self.fail(f"{call.id} acts in doubt")
            if call.call is not None or life.status != "safe":
                life.renewed_ns = now
        if call.status == "safe" or call.call is not None:
            life.status = call.status

    def _safe_by(self, life: Life, renewed_ns: int) -> None:
        """Check at the end of a hold that the member whose call was renewed at `renewed_ns` is safe, unless the loop
        cannot act."""
        now = self.time.now_ns
        there = self.lives.get(life.member.id) is life
        if not there or life.status != "fresh" or life.renewed_ns > renewed_ns or self.loop.ended_by is not None:
            return
        spans = [*self.process.frozen_spans[-3:], *self.thread.blocked_spans[-3:]]
        if ends := [end for begin, end in spans if begin - SOON_NS <= now < end + SOON_NS]:
            self.time.at(max(ends) + SOON_NS, partial(self._safe_by, life, renewed_ns))
        else:
            self.fail(f"{life.member.id} is not safe at the end of its hold")

    def _write(self, line: dict[str, Any]) -> None:
        """Count a line of the record."""
        if self.trace:
            print(f"{(self.time.now_ns - START_NS) / 1e9:12.6f} {line}")
        self.account.add(line)
        if "people" in line:
            self.paused = line["people"] == "pause"
        if "kind" not in line or line["epoch"] != self.lives[line["member"]].member.epoch:
            return
        life = self.lives[line["member"]]
        release_ns = self.loop.core.ledger.t0_ns + round(line["t_s"] * S)
        if line["kind"] in ("call", "null"):
            if self.paused:
                self.fail(f"{line} acts while people hold it back")
            if self.time.now_ns > release_ns + life.period_ns + US:
                self.fail(f"{line} acts after its deadline")
            if line["spans_ms"]["captured"] < -(self.config.max_age_ms or 0):
                self.fail(f"{line} is of too old a look")
        elif line["kind"] == "miss":
            self._blame(line, release_ns - 2 * life.period_ns)

    def _blame(self, line: dict[str, Any], begin_ns: int) -> None:
        word = line["cause"] if line.get("subcause") is None else f"{line['cause']}.{line['subcause']}"
        self.causes[word] += 1
        near = [one for one in self.faults.recent if one.start_ns <= self.time.now_ns and one.end_ns >= begin_ns]
        if not any(word in one.kind.causes or word in WORDS.get(one.kind.name, ()) for one in near):
            names = ", ".join(sorted({fault.kind.name for fault in near})) or "no fault"
            self.fail(f"a miss with cause {word}, where there was {names}: {line}")


def crowds(seeds: Iterable[int], periods: int = PERIODS, trace: bool = False) -> SimTally:
    """Run each seed for so many periods, and return the counts of results."""
    total = SimTally()
    for seed in seeds:
        run = SimCrowd(seed)
        run.trace = trace
        try:
            with without_garbage_collection():
                run.fly(periods)
        except Violation as violation:
            total.failures[seed] = f"crowd {seed}: {violation}\n  python -m tests.simulation.crowd {seed}"
        total.add(SimTally(run.account.releases, run.faults.injected, causes=run.causes))
    return total


if __name__ == "__main__":
    print(crowds([int(sys.argv[1])], trace=True).table())
