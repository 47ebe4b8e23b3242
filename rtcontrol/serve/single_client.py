"""`rtcontrol run --env remote`: an ordinary run whose environment is one remote client."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from queue import Empty, Queue

from rtcontrol.envs.base import Observation
from rtcontrol.envs.remote_core import RemoteData
from rtcontrol.hosts.deciders import SCRIPTED
from rtcontrol.hosts.inprocess import InProcessPool
from rtcontrol.loop.loop import ControlLoop
from rtcontrol.loop.rules import check_names
from rtcontrol.loop.sampling import PauseWatch
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly, interpreting
from rtcontrol.run.carla_bridge import BridgeProcess
from rtcontrol.run.live import LiveView
from rtcontrol.run.options import RunOptions
from rtcontrol.run.run import Parts, run_loop
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.loop_session import LoopSession
from rtcontrol.serve.negotiate import Terms, negotiate, ttl_of
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.owner import SessionOwner
from rtcontrol.serve.replies import LoopReports
from rtcontrol.serve.server import Housekeeping
from rtcontrol.serve.session import SessionThread
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.serve.sessions import Session
from rtcontrol.serve.zmq_server import Router
from rtcontrol.settings import MAX_HZ
from rtcontrol_client.console import Outbox
from rtcontrol_client.shutdown import Shutdown
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import Hello


class SingleSession(LoopSession):
    """The session of the run's only client; the loop runs on the thread that waits for the client."""

    def __init__(self, facts: Session, owner: SessionOwner, arrived: Callable[[LoopSession], None]) -> None:
        super().__init__(facts, owner)
        self._arrived = arrived

    def start(self, first: bool) -> None:
        self._arrived(self)


def run_remote(config: RunOptions, ending: Shutdown, endpoint: str = "", partner: BridgeProcess | None = None) -> int:
    """Wait for a client and run in its world until the client says bye or the run is over. Return the exit status.

    The command line sets rate, deadline and fallback; the client sets agent or tools, pacing and time-to-live. A lost
    client causes misses until it resumes. Raises UserError if the endpoint cannot be used.
    """
    ending.of(lambda name: None)
    names = ("out", "agent", "tools", "model", "engine", "dtype", "threads", "host", "hz", "seed")
    shared = {name: getattr(config, name) for name in (*names, "calls_per_tick", "hysteresis")}
    options = ServeOptions(hz_max=MAX_HZ, max_sessions=1, **shared).ready()
    arrived: Queue[LoopSession] = Queue()
    with ExitStack() as stack:
        say = stack.enter_context(Outbox(2)).say
        view = LiveView(config)
        stack.callback(view.close)

        def kind(facts: Session, owner: SessionOwner) -> SessionThread:
            return SingleSession(facts, owner, arrived.put)

        pool, watch = InProcessPool(workers=0), PauseWatch(config.period_ns)
        sessions = SessionManager(options, pool, watch, say, kind, outlives=True)
        router = Router(sessions, [endpoint] if endpoint else list(config.bind), config.keys)
        stack.callback(router.close)
        router.start()
        stack.enter_context(Housekeeping(sessions, router))
        if partner is None:
            say(f"waiting for a client on {router.endpoints[0]}")
        while not ending.called():
            if partner is not None:
                partner.check()
            with suppress(Empty):
                session = arrived.get(timeout=0.1)
                try:
                    terms = _terms(session.facts.hello, config, options)
                except WireError as error:
                    sessions.tell(ev.Ended(session.facts, error))
                else:
                    return _run(session, terms, view, ending, partner)
        return ending.status


def _run(session: LoopSession, terms: Terms, view: LiveView, ending: Shutdown, partner: BridgeProcess | None) -> int:
    def ready(loop: ControlLoop) -> None:
        session.attach(loop)
        if partner is not None:
            partner.joined(loop)

    facts, owner = session.facts, session.owner
    session.terms = terms
    owner.tell(ev.Agreed(facts))  # the client is welcomed when the loop is warm
    env = session.make_env(terms)
    host = assembly.host(terms.config, terms.source, terms.model, terms.agent)
    sample = Observation(0, 0, 0, RemoteData.of(None, "warm-up")) if terms.config.warmup else None
    refusal: WireError | None = None
    try:
        check_names(terms.config, terms.agent)
        clock = terms.arrivals(env)
        interpreter = interpreting.of_config(terms.config, terms.agent)
        parts = Parts(terms.agent, env, host, sample, interpreter, clock, LoopReports(session))
        return run_loop(terms.config, parts, view, ending, ready)
    except UserError as error:
        refusal = WireError(Code.INTERNAL, error.what, error.remedy, fatal=True)
        raise
    finally:
        why = session.loop.ended_by if session.loop is not None else None
        owner.tell(ev.Ended(facts, refusal, why or "the run is over"))


def _terms(hello: Hello, config: RunOptions, options: ServeOptions) -> Terms:
    """Return the settings for the client's hello; the command line takes precedence. Raises WireError."""
    local: dict[str, object] = {"hz": config.hz, "deadline_ms": None, "max_age_ms": None, "on_miss": None}
    if config.hold_ms is not None:
        local["hold_ms"] = config.hold_ms
    if config.instruction is not None:
        local["instruction"] = config.instruction
    terms = negotiate(hello.model_copy(update=local), options, config.out)
    agreed = replace(
        config,
        agent=terms.agent.name,
        model=terms.model,
        instruction=terms.agent.instruction,
        clock=terms.config.clock,
        hold_ms=terms.hold_ms,
        warmup=0 if config.backup in SCRIPTED else terms.config.warmup,
        calls_per_tick=terms.config.calls_per_tick,
        min_confidence=terms.config.min_confidence if config.min_confidence is None else config.min_confidence,
        first_observation_s=terms.config.first_observation_s,
    )
    return replace(terms, config=agreed, ttl_ms=ttl_of(agreed) if hello.ttl_ms is None else hello.ttl_ms)
