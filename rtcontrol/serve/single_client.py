"""`rtcontrol run --env remote`: a normal run whose environment is the world of one remote client."""

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
from rtcontrol.run.run import RunParts, run_loop
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.loop_session import LoopSession
from rtcontrol.serve.negotiate import SessionTerms, default_ttl_ms, negotiate
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.owner import SessionOwner
from rtcontrol.serve.replies import LoopListener
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
    """The session of the run's only client. It has no thread: `on_start` makes the run's main thread run the loop."""

    def __init__(self, session: Session, owner: SessionOwner, on_start: Callable[[LoopSession], None]) -> None:
        super().__init__(session, owner)
        self._on_start = on_start

    def start(self, first: bool) -> None:
        self._on_start(self)


def run_remote(config: RunOptions, ending: Shutdown, endpoint: str = "", partner: BridgeProcess | None = None) -> int:
    """Wait for a client, and run in its world until the client sends bye or the run ends. Return the exit status.

    The command line sets rate, deadline and fallback; the client sets agent or tools, pacing and time to live. While
    the client is lost, ticks are missed. `partner`: the process of the CARLA bridge, if any. Raises UserError if an
    endpoint cannot be bound."""
    ending.of(lambda name: None)
    names = ("out", "agent", "tools", "model", "engine", "dtype", "threads", "host", "hz", "seed")
    shared = {name: getattr(config, name) for name in (*names, "calls_per_tick", "hysteresis")}
    options = ServeOptions(hz_max=MAX_HZ, max_sessions=1, **shared).prepare()
    arrived: Queue[LoopSession] = Queue()
    with ExitStack() as stack:
        say = stack.enter_context(Outbox(2)).say
        view = LiveView(config)
        stack.callback(view.close)

        def create_thread(session: Session, owner: SessionOwner) -> SessionThread:
            return SingleSession(session, owner, arrived.put)

        pool, watch = InProcessPool(workers=0), PauseWatch(config.period_ns)
        sessions = SessionManager(options, pool, watch, say, create_thread, outlives_client=True)
        router = Router(sessions, [endpoint] if endpoint else list(config.bind), config.keys)
        stack.callback(router.close)
        router.start()
        stack.enter_context(Housekeeping(sessions, router))
        if partner is None:
            say(f"waiting for a client on {router.endpoints[0]}")
        while not ending.called():
            if partner is not None:
                partner.raise_failure()
            with suppress(Empty):
                thread = arrived.get(timeout=0.1)
                try:
                    terms = _terms_of_hello(thread.session.hello, config, options)
                except WireError as error:
                    sessions.handle(ev.SessionEnded(thread.session, error))
                else:
                    return _run(thread, terms, view, ending, partner)
        return ending.status


def _run(
    thread: LoopSession, terms: SessionTerms, view: LiveView, ending: Shutdown, partner: BridgeProcess | None
) -> int:
    def ready(loop: ControlLoop) -> None:
        thread.attach(loop)
        if partner is not None:
            partner.stop_with_bridge(loop)

    session, owner = thread.session, thread.owner
    thread.terms = terms
    owner.handle(ev.SettingsNegotiated(session))  # the welcome follows when the loop is warmed up
    env = thread.make_env(terms)
    host = assembly.make_host(terms.config, terms.source, terms.model, terms.agent)
    sample = Observation(0, 0, 0, RemoteData.of(None, "warm-up")) if terms.config.warmup else None
    refusal: WireError | None = None
    try:
        check_names(terms.config, terms.agent)
        clock = terms.client_clock(env.arrival)
        interpreter = interpreting.interpreter_of_config(terms.config, terms.agent)
        parts = RunParts(terms.agent, env, host, sample, interpreter, clock, LoopListener(thread))
        return run_loop(terms.config, parts, view, ending, ready)
    except UserError as error:
        refusal = WireError(Code.INTERNAL, error.what, error.remedy, fatal=True)
        raise
    finally:
        why = thread.loop.ended_by if thread.loop is not None else None
        owner.handle(ev.SessionEnded(session, refusal, why or "the run is over"))


def _terms_of_hello(hello: Hello, config: RunOptions, options: ServeOptions) -> SessionTerms:
    """Return the settings for the client's hello. Settings of the command line take precedence. Raises WireError."""
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
    return replace(terms, config=agreed, ttl_ms=default_ttl_ms(agreed) if hello.ttl_ms is None else hello.ttl_ms)
