"""Put a loop together: its core from configuration and agent, its shell from what the run acts on."""

from __future__ import annotations

from rtcontrol.agents import Agent
from rtcontrol.agents.goal_tools import GoalTools
from rtcontrol.envs.base import Emitting, Environment
from rtcontrol.loop import errors
from rtcontrol.loop.actuator import Actuator
from rtcontrol.loop.clock import WallClock, lockstep_clock
from rtcontrol.loop.confidence import ConfidenceGate
from rtcontrol.loop.config import RunConfig, plain_text
from rtcontrol.loop.core import LoopCore, LoopSettings, Rules
from rtcontrol.loop.desk import OperatorControl
from rtcontrol.loop.legal import LegalCalls
from rtcontrol.loop.ports import Ports
from rtcontrol.loop.running import RunningLoop
from rtcontrol.loop.sampling import PauseWatch, Sampler
from rtcontrol.loop.shell import TickShell
from rtcontrol.telemetry.encoder import plain

# A safe call that is not active is tried again every period, but at slow rates too as often as this.
RETRY_NS = 1_000_000_000


def settings_of(config: RunConfig, agent: Agent, env: Environment | None = None) -> LoopSettings:
    """Return the numbers of a run; None: its world is not one environment."""
    hold_ms = config.hold_ms if config.hold_ms is not None else agent.fallback.hold_ms
    duration_s = config.duration_s
    return LoopSettings(
        instruction=plain_text(config.instruction if config.instruction is not None else agent.instruction),
        hz=config.hz,
        period_ns=config.period_ns,
        deadline_ns=config.deadline_ns,
        max_age_ns=config.max_age_ns,
        hold_ns=round(hold_ms * 1e6),
        confirm_ns=round(config.confirm_s * 1e9),
        duration_ns=None if duration_s is None else round(duration_s * 1e9),
        pipeline=config.pipeline,
        calls_per_tick=config.calls_per_tick,
        on_miss=config.on_miss,
        records=config.record_observations == "yes",
        emits=isinstance(env, Emitting),
        steady=config.hysteresis is not None,
        cuts=config.clock == "wall",
    )


def rules_of(config: RunConfig, agent: Agent, goals: GoalTools | None = None) -> Rules:
    """Return what the agent, and the run's options about it, bring."""
    gate = ConfidenceGate(config.floors, agent.tools, agent.null_is_doubt)
    return Rules(
        check=LegalCalls(agent.tools).check,
        describe=lambda error: (errors.text(error), errors.where(error)),
        plain=plain,
        safe_calls=agent.fallback.safe_calls,
        doubt=gate.doubt if gate.closed else None,
        confirm=frozenset(config.confirm) | frozenset(agent.confirm),
        history=agent.history,
        goals=goals,
    )


def assemble(loop: RunningLoop, watch: PauseWatch) -> TickShell:
    """Return what runs the ticks of a loop."""
    config, agent, env, host, options = loop.config, loop.agent, loop.env, loop.host, loop.options
    clock = options.clock
    if clock is None:
        wall = config.clock == "wall"
        clock = WallClock(config.period_ns) if wall else lockstep_clock(config.period_ns, env.advance)
    core = LoopCore(settings_of(config, agent, env), rules_of(config, agent, options.goals), clock.grid)
    retry_ns = min(config.period_ns, RETRY_NS) if clock.grid.enforced else None
    actuator = Actuator(agent, env, retry_ns, host.wake)

    def retake() -> None:
        for name in options.retake():
            loop.tell(f"{name} was taken by the world's code or a library, and is taken back: it ends the run safely.")

    ports = Ports(
        agent=agent,
        env=env,
        host=host,
        actuator=actuator,
        sampler=Sampler(watch, host, actuator),
        operator=OperatorControl(actuator, core.settings.confirm_ns, loop.stop, host.wake),
        write=loop.recorder.write,
        notify=loop.tell,
        stop=loop.stop,
        report=options.listener.report,
        retake=retake,
    )
    return TickShell(core, clock, ports)
