"""Simulate a server and a client: the real sessions and the client's real core, connected by a network with faults.

Messages are encoded and decoded as in the wire protocol. The clock of the client's machine has an offset.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rtcontrol.drill.simulation.decoder import FUNCTIONS
from rtcontrol.drill.simulation.faults import NETWORK, Faults, SimFault
from rtcontrol.drill.simulation.referee import Violation
from rtcontrol.drill.simulation.run import Machine, Scenario, SimRun, Trace, simulated_clock
from rtcontrol.drill.simulation.timeline import MS, US, Process, S, SimTimeline
from rtcontrol.envs.base import Emission, Observation
from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.loop_session import LoopSession
from rtcontrol.serve.negotiate import SessionTerms
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.serve.sessions import Session
from rtcontrol_client.client.core import Core
from rtcontrol_client.client.options import Options
from rtcontrol_client.wire import Message, decode_msgpack, encode_msgpack
from rtcontrol_client.wire.messages import Observe

OPTIONS = ServeOptions(heartbeat_s=0.2, out=Path(os.devnull))
TTL_PERIODS = 3  # an observation's time to live, in periods
Deliver = Callable[[list[bytes]], None]  # is called with a message when the message arrives
OFFSET_NS = 123 * S  # the clocks of the client's and the server's machines differ by this


class Network:
    """A simulated network. Unless a fault is active, it delivers messages in order after at most 1.1 ms."""

    def __init__(self, time: SimTimeline, faults: Faults, period_ns: int) -> None:
        self.time, self.faults, self.period_ns = time, faults, period_ns
        self.rng = time.rng("network")
        self._delaying: dict[tuple[int, str], SimFault] = {}  # by (connection, direction): the newest delaying fault
        self._last: dict[Any, int] = {}  # by (connection, direction): arrival time of the last message

    def send(self, direction: tuple[int, str], parts: list[bytes], deliver: Deliver) -> None:
        """Schedule the delivery of a message. An active fault may lose, delay, reorder or duplicate the message.
        `direction`: the connection's number, and "up" or "down"."""
        faults, rng, period_ns = self.faults, self.rng, self.period_ns
        if faults.active("net_silence") or (faults.active("net_loss") and rng.random() < 0.5):
            return
        at_ns = self.time.now_ns + 100 * US + int(rng.random() * MS)
        if (delay := faults.active("net_delay")) is not None:
            at_ns += int(rng.random() * 2 * period_ns)
            self._delaying[direction] = delay
        if faults.active("net_reorder"):
            at_ns += int(rng.random() * period_ns)
        else:
            next_ns = self._last.get(direction, 0) + 1
            if at_ns < next_ns and direction in self._delaying:  # a delayed message delays this one
                self._delaying[direction].late_ns = next_ns + period_ns
            at_ns = max(at_ns, next_ns)
        self._last[direction] = at_ns
        self.time.at(at_ns, lambda: deliver(parts))
        if faults.active("net_duplicate"):
            self.time.at(at_ns + int(rng.random() * period_ns), lambda: deliver(parts))


class SimConnection:
    """A simulated connection between the server and the client."""

    key: str | None = None

    def __init__(self, number: int, world: RemoteRun) -> None:
        self.number, self.peer = number, f"client {number}"
        self._world = world
        self.closed = False

    def send(self, message: Message) -> None:
        """Send a message from the server to the client."""
        client = self._world.client
        self._send_parts("down", message, client.process, lambda parts: client.receive(self, decode_msgpack(parts)))

    def send_from_client(self, message: Message) -> None:
        """Send a message from the client to the server."""
        manager = self._world.manager
        deliver = lambda parts: manager.receive(self, lambda: decode_msgpack(parts))  # noqa: E731
        self._send_parts("up", message, self._world.machine.process, deliver)

    def _send_parts(self, direction: str, message: Message, process: Process, deliver: Deliver) -> None:
        def deliver_if_open(parts: list[bytes]) -> None:
            if not self.closed:
                process.at(self._world.time.now_ns, lambda: deliver(parts))

        if not self.closed:
            self._world.network.send((self.number, direction), encode_msgpack(message), deliver_if_open)

    def close(self) -> None:
        """Close the connection. Both ends notice this after 1 ms."""
        if self.closed:
            return
        self.closed = True
        world, now = self._world, self._world.time.now_ns
        world.machine.process.at(now + MS, lambda: world.manager.disconnected(self))
        world.client.process.at(now + MS, lambda: world.client.on_lost(self))


class SimClient:
    """A simulated client program, which sends an observation at each step, and executes the server's calls."""

    def __init__(self, world: RemoteRun, ttl_ms: float, step_ns: int) -> None:
        self.world, self.time, self.step_ns = world, world.time, step_ns
        self.process = Process(world.time)
        self.rng = world.time.rng("client")
        self.ttl_ns, self.fail = int(ttl_ms * MS), world.fail
        self.core = Core(Options(agent="sim", on_call=print, ttl_ms=ttl_ms, connect_timeout_s=None), self.now_ns)
        self.core.connection._opened_ns = 0
        self.connection: SimConnection | None = None
        self.epochs: dict[int, int] = {}  # by sequence number of an observation: the observation's epoch
        self._opened = 0
        self._timer_ns = 0

    @property
    def now_ns(self) -> int:
        return self.time.now_ns + OFFSET_NS

    def start(self) -> None:
        self.open()
        self.process.at(self.time.now_ns, self._step)
        self.process.at(self.time.now_ns, self.do_due_work)

    def open(self) -> None:
        """Open a new connection, which succeeds after 2 ms, unless the network is down."""
        if self.connection is not None:
            self.connection.close()
        self._opened += 1
        connection = self.connection = SimConnection(self._opened, self.world)
        if self.world.faults.active("net_cut") is None and self.world.faults.active("net_silence") is None:
            self.process.at(self.time.now_ns + 2 * MS, lambda: self._on_connected(connection))

    def _on_connected(self, connection: SimConnection) -> None:
        if connection is self.connection and not connection.closed:
            self.core.on_connected(self.now_ns)
            self.do_due_work()

    def on_lost(self, connection: SimConnection) -> None:
        if connection is self.connection and self.core.connection.is_up:
            self.core.on_lost(self.now_ns, "the connection was lost")
            self.do_due_work()

    def receive(self, connection: SimConnection, message: Message) -> None:
        if connection is self.connection and not connection.closed:
            self.core.receive(message, self.now_ns)
            self.do_due_work()

    def do_due_work(self) -> None:
        """Send due messages, execute due calls, and check the time to live of the active call."""
        core, now = self.core, self.now_ns
        if core.should_reconnect(now):
            self.open()
        core.expire(now)
        assert self.connection is not None
        for message in core.due_messages(now):
            if isinstance(message, Observe):
                self.epochs[message.seq] = message.epoch
            self.connection.send_from_client(message)
        for safe in (False, True):
            if (started := core.pop_call(safe, now)) is not None:
                self._execute_call(started, now)
        self._check_active_call(now)
        wake_ns = core.wake_ns(now) - OFFSET_NS
        if not self._timer_ns or wake_ns < self._timer_ns:
            self._timer_ns = wake_ns
            self.process.at(wake_ns, lambda: self._wake(wake_ns))

    def _wake(self, wake_ns: int) -> None:
        if wake_ns == self._timer_ns:  # not if another timer has replaced this timer
            self._timer_ns = 0
            self.do_due_work()

    def _execute_call(self, started: Any, now: int) -> None:
        """Check the age and the epoch of the call's observation, and acknowledge the call as executed."""
        if started.status == "fresh" and started.seq_obs is not None:
            t_obs_ns = self.core.looks.captured_ns.get(started.seq_obs)
            if t_obs_ns is None or now > t_obs_ns + self.ttl_ns:
                self.fail(f"a call acts on observation {started.seq_obs} after its time to live")
            if self.epochs.get(started.seq_obs) != self.core.epoch:
                self.fail(f"a call acts on observation {started.seq_obs} of another epoch")
        self.core.acknowledge(started, "executed", now)

    def _check_active_call(self, now: int) -> None:
        active = self.core.active
        if active.standing_at(now).status != "safe" and (active.expires_ns is None or now > active.expires_ns):
            self.fail("a call is active after its time to live")
        if active.kind == "call" and active.expires_ns is not None and active.expires_ns > now + self.ttl_ns:
            self.fail("a call would be active for longer than its time to live")

    def _step(self) -> None:
        """Send an observation, and schedule the next step."""
        core = self.core
        if not core.connection.is_open:  # a fault of the network lasts until the client is connected again
            near = [fault for fault in self.world.faults.recent if fault.kind.name in NETWORK]
            for fault in near[-1:]:
                fault.extend_to(self.time.now_ns + 4 * self.step_ns)
        if core.error is None:
            if self.world.faults.take_pending("client_reset") is not None:
                core.reset()
            core.observe(Observe(session="-" * 16, seq=0, epoch=0, t_ns=self.now_ns, data={"x": 1}))
            self.do_due_work()
        self.process.at(self.time.now_ns + self.step_ns, self._step)


class SimRemote(RemoteEnvironment):
    """The environment of a session's loop. The referee checks a call when it is sent to the client."""

    run: SimRun | None = None
    _epoch_shown = -1

    def emit(self, emission: Emission) -> None:
        if self.run is not None:
            self._check_emission(self.run, emission)
        super().emit(emission)

    def latest(self) -> Observation | None:
        newest = super().latest()
        if newest is not None and newest.epoch != self._epoch_shown and self.run is not None:
            self._epoch_shown = newest.epoch
            self.run.referee.record_renewal()
        return newest

    def _check_emission(self, run: SimRun, emission: Emission) -> None:
        referee, k = run.referee, emission.tick
        if emission.status == "safe":
            referee.safes.append(run.time.now_ns)
            return
        if emission.call is not None:
            requested_ns, request = run.host.requests[k]
            wrong = {"in another epoch": request.epoch != self.epoch, "illegal": emission.call.name not in FUNCTIONS}
            referee.check_act(k, requested_ns, request.captured_ns, wrong)
            referee.record_renewal()
        referee.check_received(k)


class SimSession(LoopSession):
    """A LoopSession whose loop is simulated, by `serve`."""

    env: SimRemote | None

    def __init__(self, session: Session, owner: Any, world: RemoteRun) -> None:
        super().__init__(session, owner)
        self._world = world

    def start(self, first: bool) -> None:
        self._world.opening.append(self)

    def negotiate(self) -> SessionTerms:
        scenario, hello = self._world.scenario, self.session.hello
        source: Any = None  # not needed: the simulated machine has the decoder
        agent = scenario.agent
        return SessionTerms(hello, agent, None, "sim", source, scenario.config, hello.ttl_ms or 0.0, True, (), OPTIONS)

    def make_env(self, terms: SessionTerms) -> SimRemote:
        if self.env is None:
            self.env = SimRemote(terms.remote(self.session.token), self.send, self.report_warmed_up)
        return self.env

    def create_loop(self, instruction: str | None) -> Any:
        world, env = self._world, self.make_env(self.terms)
        run: Any = SimRun(world.scenario, world.trace, world.machine, env)
        world.runs.append(run)
        env.run = run
        self.attach(run)
        return run

    def serve(self) -> None:
        """Run the loop until the client is lost. Raises Violation if a rule is violated."""
        time, owner = self._world.time, self.owner
        run: Any = self.negotiate_and_open()
        env = self.env
        if run is not None and env is not None:
            env.start("wall")
            time.run(time.now_ns + 10 * S, lambda: env.latest() is not None or run.ended_by is not None)
            env._epoch_shown = -1  # makes `latest` report the epoch to the new referee
            if run.ended_by is None:
                run.loop()
            env.run = None
        owner.handle(ev.SessionEnded(self.session))


class RemoteRun:
    """A simulated server with one client. Whenever the client connects, a loop runs until the client is lost."""

    def __init__(self, scenario: Scenario, trace: Trace = None) -> None:
        self.scenario, self.trace = scenario, trace
        self.machine = machine = Machine(scenario)
        self.time, self.faults = machine.time, machine.faults
        self.network = Network(self.time, self.faults, machine.settings.period_ns)
        no_threads: Any = None
        with simulated_clock(self.time):
            self.manager = SessionManager(
                OPTIONS, no_threads, no_threads, create_thread=lambda session, owner: SimSession(session, owner, self)
            )
        ttl_ms = TTL_PERIODS * machine.settings.period_ns / 1e6
        self.client = SimClient(self, ttl_ms, machine.settings.period_ns * 3 // 4)
        self.opening: deque[SimSession] = deque()
        self.runs: list[SimRun] = []
        self.ended = False
        self.faults.effects |= {"net_cut": self._cut_network}

    def fail(self, text: str) -> None:
        """Raise a Violation for an error of the client."""
        if self.runs:
            self.runs[-1].referee.fail(f"client: {text}")
        raise Violation(f"client: {text}")

    def run(self, ticks: int) -> None:
        """Serve the client for a number of periods. Raises Violation if a rule is violated."""
        random.seed(self.scenario.seed)  # for the client's random waits before it connects again
        end_ns = self.time.now_ns + ticks * self.machine.settings.period_ns
        with simulated_clock(self.time):
            self.faults.start()
            self.time.at(end_ns, self._end)
            self.client.start()
            self._check_sessions()
            while not self.ended:
                self.time.run(end_ns + S, lambda: bool(self.opening) or self.ended)
                if self.opening:
                    self.opening.popleft().serve()

    def _end(self) -> None:
        self.ended, self.faults.running = True, False
        for session in self.manager.threads():
            session.stop_loop("duration")

    def _check_sessions(self) -> None:
        """Let the session manager check its sessions, every 100 ms as in the real server."""
        self.manager.check()
        self.machine.process.at(self.time.now_ns + 100 * MS, self._check_sessions)

    def _cut_network(self, fault: SimFault) -> None:
        if self.client.connection is not None:
            self.client.connection.close()
