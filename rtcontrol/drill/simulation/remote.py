"""The simulated world behind the wire: the client's core, the session's core, and between them a network that fails.

Messages go through the wire's codec. The client's process has its own clock.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from rtcontrol.drill.simulation.decoder import FUNCTIONS
from rtcontrol.drill.simulation.faults import NETWORK, Faults, SimFault
from rtcontrol.drill.simulation.referee import Act, Violation
from rtcontrol.drill.simulation.run import Machine, Scenario, SimRun, Trace, simulated
from rtcontrol.drill.simulation.timeline import MS, US, Process, S, SimTimeline
from rtcontrol.envs.base import Emission, Observation
from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.envs.remote_core import RemoteTerms, wire_call, wire_calls
from rtcontrol.serve import sessions as do
from rtcontrol.serve.loop_session import TAKE
from rtcontrol.serve.session_core import SessionCore
from rtcontrol.serve.sessions import LoopStanding, SessionFacts, SessionRules, Turn
from rtcontrol_client.client.core import Core
from rtcontrol_client.client.options import Options
from rtcontrol_client.wire import LIMITS, PROTOCOL, Message, WireError, decode_msgpack, encode_msgpack
from rtcontrol_client.wire.messages import Observe, Program, Welcome

T = TypeVar("T")
TTL_PERIODS = 3
OFFSET_NS = 123 * S  # the client's clock is another machine's


class Network:
    """Carries messages, a little late and in order, but where a fault says otherwise."""

    def __init__(self, time: SimTimeline, faults: Faults, period_ns: int) -> None:
        self.time, self.faults, self.period_ns = time, faults, period_ns
        self.chance = time.chance("network")
        self._delaying: dict[tuple[int, str], SimFault] = {}  # by connection and direction
        self._last: dict[Any, int] = {}  # by connection and direction, when its last message arrives

    def carry(self, way: tuple[int, str], parts: list[bytes], arrives: Callable[[list[bytes]], None]) -> None:
        """Let a message arrive, in order but where a fault says otherwise; or lose it."""
        now, faults, chance = self.time.now_ns, self.faults, self.chance
        if faults.on("net_silence") or (faults.on("net_loss") and chance.random() < 0.5):
            return
        at_ns = now + 100 * US + int(chance.random() * MS)
        if (delay := faults.on("net_delay")) is not None:
            at_ns += int(chance.random() * 2 * self.period_ns)
            self._delaying[way] = delay
        if not faults.on("net_reorder"):
            if at_ns <= self._last.get(way, 0) and way in self._delaying:  # kept in order behind a delayed one
                at_ns = self._last[way] + 1
                self._delaying[way].late_ns = at_ns + self.period_ns
            at_ns = max(at_ns, self._last.get(way, 0) + 1)
        else:
            at_ns += int(chance.random() * self.period_ns)
        self._last[way] = at_ns
        self.time.at(at_ns, lambda: arrives(parts))
        if faults.on("net_duplicate"):
            self.time.at(at_ns + int(chance.random() * self.period_ns), lambda: arrives(parts))


class SimConnection:
    """One connection, as the server and the client know it."""

    key: str | None = None

    def __init__(self, number: int, world: RemoteRun) -> None:
        self.number, self.peer = number, f"client {number}"
        self._world = world
        self.closed = False

    def send(self, message: Message) -> None:
        """The server says something."""
        if not self.closed:
            self._world.network.carry((self.number, "down"), encode_msgpack(message), self._down)

    def say(self, message: Message) -> None:
        """The client says something."""
        if not self.closed:
            self._world.network.carry((self.number, "up"), encode_msgpack(message), self._up)

    def close(self) -> None:
        """It is gone: both ends learn of it a little later."""
        if self.closed:
            return
        self.closed = True
        world, now = self._world, self._world.time.now_ns
        world.machine.process.at(now + MS, lambda: world.tell(world.core.disconnected, self))
        world.client.process.at(now + MS, lambda: world.client.lost(self))

    def _down(self, parts: list[bytes]) -> None:
        client = self._world.client
        if not self.closed:
            client.process.at(self._world.time.now_ns, lambda: client.hears(self, decode_msgpack(parts)))

    def _up(self, parts: list[bytes]) -> None:
        if not self.closed:
            self._world.machine.process.at(self._world.time.now_ns, lambda: self._world.hears(self, parts))


class SimClient:
    """The client's program: it looks at its world each step, carries out what begins, and never outlives a call."""

    def __init__(self, world: RemoteRun, ttl_ms: float, step_ns: int) -> None:
        self.world, self.time, self.step_ns = world, world.time, step_ns
        self.process = Process(world.time)
        self.chance = world.time.chance("client")
        self.options = Options(agent="sim", on_call=print, ttl_ms=ttl_ms, connect_timeout_s=None)
        self.core = Core(self.options, self.now_ns)
        self.core.connection._opened_ns = 0
        self.connection: SimConnection | None = None
        self.epochs: dict[int, int] = {}  # by observation
        self.handed = 0
        self._opened = 0
        self._timer_ns = 0

    @property
    def now_ns(self) -> int:
        return self.time.now_ns + OFFSET_NS

    def start(self) -> None:
        self.open()
        self.process.at(self.time.now_ns, self._step)
        self.process.at(self.time.now_ns, self.turn)

    def open(self) -> None:
        """Make another connection; it comes up soon, or not at all."""
        if self.connection is not None:
            self.connection.close()
        self._opened += 1
        made = self.connection = SimConnection(self._opened, self.world)
        if self.world.faults.on("net_cut") is None and self.world.faults.on("net_silence") is None:
            self.process.at(self.time.now_ns + 2 * MS, lambda: self._up(made))

    def _up(self, made: SimConnection) -> None:
        if made is self.connection and not made.closed:
            self.core.connected(self.now_ns)
            self.turn()

    def lost(self, gone: SimConnection) -> None:
        if gone is self.connection and self.core.connection.up:
            self.core.lost(self.now_ns, "the connection was lost")
            self.turn()

    def hears(self, connection: SimConnection, message: Message) -> None:
        if connection is self.connection and not connection.closed:
            self.core.hear(message, self.now_ns)
            self.turn()

    def turn(self) -> None:
        """Do what is due, and look whether what is in force may be."""
        core, now = self.core, self.now_ns
        if core.reconnects(now):
            self.open()
        core.look(now)
        assert self.connection is not None
        for message in core.due(now):
            if isinstance(message, Observe):
                self.epochs[message.seq] = message.epoch
            self.connection.say(message)
        for of_safe in (False, True):
            if (standing := core.take(of_safe, now)) is not None:
                self._act(standing, now)
        self._judge(now)
        wake_ns = core.wake_ns(now) - OFFSET_NS
        if not self._timer_ns or wake_ns < self._timer_ns:
            self._timer_ns = wake_ns
            self.process.at(wake_ns, lambda: self._wake(wake_ns))

    def _wake(self, wake_ns: int) -> None:
        if wake_ns == self._timer_ns:  # else an earlier one was set after it
            self._timer_ns = 0
            self.turn()

    def _act(self, standing: Any, now: int) -> None:
        """Carry out what begins."""
        self.handed += 1
        if standing.status == "fresh" and standing.seq_obs is not None:
            t_obs_ns = self.core.stamps.get(standing.seq_obs)
            if t_obs_ns is None or now > t_obs_ns + self.ttl_ns:
                self.fail(f"it acts on observation {standing.seq_obs} after its time to live")
            if self.epochs.get(standing.seq_obs) != self.core.epoch:
                self.fail(f"it acts on observation {standing.seq_obs} of another epoch")
        self.core.acknowledge(standing, "executed", now)

    def _judge(self, now: int) -> None:
        force = self.core.force
        if force.at(now).status != "safe" and (force.expires_ns is None or now > force.expires_ns):
            self.fail("a call goes on after its time to live")
        if force.kind == "call" and force.expires_ns is not None and force.expires_ns > now + self.ttl_ns:
            self.fail("a call would go on for longer than its time to live")

    def fail(self, what: str) -> None:
        self.world.fail(f"client: {what}")

    @property
    def ttl_ns(self) -> int:
        return int((self.options.ttl_ms or 0) * MS)

    def _step(self) -> None:
        """Look at the world, and say what is seen."""
        core = self.core
        if not core.connection.open:  # a fault of the network lasts until the client is back
            near = [fault for fault in self.world.faults.recent if fault.kind.name in NETWORK]
            for fault in near[-1:]:
                fault.touch(self.time.now_ns + 4 * self.step_ns)
        if core.error is None:
            if self.world.faults.take("client_reset") is not None:
                core.reset()
            core.observe(Observe(session="-" * 16, seq=0, epoch=0, t_ns=self.now_ns, data={"x": 1}))
            self.turn()
        self.process.at(self.time.now_ns + self.step_ns, self._step)


class SimRemote(RemoteEnvironment):
    """The loop's side of a session; what is sent to the client is what acts."""

    run: SimRun | None = None
    _epoch_seen = -1

    def emit(self, emission: Emission) -> None:
        run = self.run
        if run is not None:
            emitted(run, emission, self.epoch)
        super().emit(emission)

    def latest(self) -> Observation | None:
        seen = super().latest()
        if seen is not None and seen.epoch != self._epoch_seen and self.run is not None:
            self._epoch_seen = seen.epoch
            self.run.referee.renewed()
        return seen


def emitted(run: SimRun, emission: Emission, epoch: int) -> None:
    """Tell the referee what is sent to the client."""
    referee, k = run.referee, emission.tick
    if emission.status == "safe":
        referee.attempted()
    elif emission.call is not None:
        asked_ns, request = run.host.asked[k]
        allowed = emission.call.name in FUNCTIONS
        act = Act(k, asked_ns, request.captured_ns, False, request.epoch == epoch, allowed)
        referee.acts_now(act)
        referee.renewed()
    if emission.status != "safe":
        referee.told(k)


@dataclass(frozen=True, slots=True)
class SimTerms:
    """What is agreed upon with the client."""

    scenario: Scenario
    ttl_ms: float
    interprets = False

    def described(self) -> str:
        return "simulated"

    def welcome(
        self, session: str, standing: LoopStanding, now_ns: int, resumed: bool = False, t_client_ns: int = 0
    ) -> Welcome:
        """Return the welcome to these terms."""
        settings, safe_calls = self.scenario.settings, self.scenario.safe_calls
        return Welcome(
            protocol=list(PROTOCOL),
            server=Program(name="rtcontrol", version="1", language="python"),
            session=session,
            t_server_ns=now_ns,
            resumed=resumed,
            t_client_ns=t_client_ns,
            epoch=standing.epoch,
            release_ns=standing.release_ns,
            tools=[],
            instruction=standing.instruction,
            model="sim",
            model_trained_on_tools=False,
            safe_call=wire_call(safe_calls[0]),
            safe_calls=wire_calls(safe_calls),
            pacing="server",
            hz=settings.hz,
            period_ms=settings.period_ns / 1e6,
            deadline_ms=settings.deadline_ns / 1e6,
            ttl_ms=self.ttl_ms,
            max_age_ms=settings.max_age_ns / 1e6,
            on_miss="safe" if settings.on_miss == "safe" else "hold",
            hold_ms=settings.hold_ns / 1e6,
            heartbeat_ms=200.0,
            session_grace_s=30.0,
            limits=LIMITS.to_dict(),
            warnings=list(standing.warnings),
        )


class RemoteRun:
    """A server with one client: each time the client comes (back), a loop runs until it is lost."""

    def __init__(self, scenario: Scenario, trace: Trace = None) -> None:
        self.scenario, self.trace = scenario, trace
        self.machine = machine = Machine(scenario)
        self.time, self.faults = machine.time, machine.faults
        self.network = Network(self.time, self.faults, scenario.settings.period_ns)
        ttl_ms = TTL_PERIODS * scenario.settings.period_ns / 1e6
        self.terms = SimTerms(scenario, ttl_ms)
        secret = self.time.chance("tokens")
        rules = SessionRules(beat_ns=200 * MS)
        self.core = SessionCore(rules, new_token=lambda: f"{secret.getrandbits(128):032x}", now_ns=self.time.now_ns)
        self.client = SimClient(self, ttl_ms, scenario.settings.period_ns * 3 // 4)
        self.opening: deque[SessionFacts] = deque()
        self.envs: dict[str, SimRemote] = {}
        self.run: SimRun | None = None
        self.runs: list[SimRun] = []
        self.violation: Violation | None = None
        self.over = False
        self.faults.begin |= {"net_cut": self._cut}

    def fail(self, what: str) -> None:
        if self.violation is None:
            self.violation = Violation(f"at {(self.time.now_ns - 3600 * S) / 1e9:.6f} s: {what}")
        raise self.violation

    def fly(self, ticks: int) -> None:
        """Serve the client for so many periods. Raises Violation."""
        random.seed(self.scenario.seed)  # of the client's pauses between two connections
        end_ns = self.time.now_ns + ticks * self.scenario.settings.period_ns
        with simulated(self.time):
            self.faults.start()
            self.time.at(end_ns, self._end)
            self.client.start()
            self._beat()
            while not self.over:
                self.time.run(end_ns + S, lambda: bool(self.opening) or self.over)
                if self.opening:
                    self._serve(self.opening.popleft())
        if self.violation is not None:
            raise self.violation

    def _end(self) -> None:
        self.over, self.faults.running = True, False
        if self.run is not None:
            self.run.stop("duration")

    def _beat(self) -> None:
        """Let the sessions' core look at the time, as its shell's ticker does."""
        self.tell(self.core.woke)
        self.machine.process.at(self.time.now_ns + 100 * MS, self._beat)

    # -- a session's thread -------------------------------------------------------------------------------------------

    def _serve(self, session: SessionFacts) -> None:
        if not session.life.gone and self.tell(self.core.opens, session, self.terms):
            self._loop(session)
        self.tell(self.core.ended, session)

    def _loop(self, session: SessionFacts) -> None:
        env = self.envs.get(session.id) or self._env(session)
        self.run = env.run = SimRun(self.scenario, self.trace, self.machine, env)
        self.runs.append(self.run)
        run = self.run
        self.tell(self.core.attached, session)
        env.start("wall")
        self.time.run(self.time.now_ns + 10 * S, lambda: env.latest() is not None or run.state.ended_by is not None)
        env._epoch_seen = -1  # the loop looks at it as at a new one
        try:
            if run.state.ended_by is None:
                run.loop()
        finally:
            self.run = env.run = None
        self.tell(self.core.ran, session, "go", "go")

    def _env(self, session: SessionFacts) -> SimRemote:
        settings = self.scenario.settings
        tools = (*FUNCTIONS, *(call.name for call in self.scenario.safe_calls))
        ttl_ms, deadline_ns = self.terms.ttl_ms, settings.deadline_ns
        terms = RemoteTerms(session.token, tools, ttl_ms=ttl_ms, acknowledges=True, minor=1, deadline_ns=deadline_ns)
        env = SimRemote(
            "sim",
            terms,
            lambda message: self.tell(self.core.emitted, session, message),
            lambda: self.tell(self.core.warm, session, {}),
        )
        self.envs[session.id] = env
        return env

    # -- the sessions' shell ------------------------------------------------------------------------------------------

    def hears(self, connection: SimConnection, parts: list[bytes]) -> None:
        """A message of the client arrives."""
        if self.tell(self.core.arrived, connection):
            self.tell(self.core.received, connection, decode_msgpack(parts))

    def tell(self, take: Callable[..., T], *given: Any) -> T:
        """Let this method of the core take what happened, and do what it says."""
        turn = Turn(self.time.now_ns)
        answer = take(turn, *given)
        for action in turn:
            DO[type(action)](self, turn, action)
        return answer

    def _start(self, turn: Turn, action: do.StartThread) -> None:
        self.opening.append(action.session)

    def _stop(self, turn: Turn, action: do.StopLoop) -> None:
        if self.run is not None:
            self.run.stop(action.why)

    def _forward(self, turn: Turn, action: do.ForwardMessage) -> None:
        message = action.message
        try:
            TAKE[type(message)](self.envs[action.session.id], message)
        except WireError as error:
            self.core.failed(turn, action.connection, message, error)

    def _look(self, turn: Turn, action: do.LookAtLoop) -> None:
        env = self.envs.get(action.session.id)
        if env is None or self.run is None:
            return
        release_ns = env.next_release_ns(self.scenario.settings.period_ns, self.time.now_ns)
        self.core.looked(turn, action.session, LoopStanding("go", env.epoch, release_ns))

    def _cut(self, fault: SimFault) -> None:
        if self.client.connection is not None:
            self.client.connection.close()


DO: dict[type, Callable[[RemoteRun, Turn, Any], None]] = {
    do.SendMessage: lambda run, turn, action: action.connection.send(action.message),
    do.DropConnection: lambda run, turn, action: action.connection.close(),
    do.NotifyPeople: lambda run, turn, action: None,
    do.ForgetSession: lambda run, turn, action: None,
    do.StartThread: RemoteRun._start,
    do.ForwardMessage: RemoteRun._forward,
    do.LookAtLoop: RemoteRun._look,
    do.StopLoop: RemoteRun._stop,
}
