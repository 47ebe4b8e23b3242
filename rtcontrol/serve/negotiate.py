"""Negotiate a session's settings (agent, model, rate, deadline, time limits) from the client's first message, hello."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rtcontrol.agents import Agent, InvalidCall, Tools
from rtcontrol.agents.agent import Fallback
from rtcontrol.envs.remote_core import RemoteTerms, memory_bytes, to_wire_call, to_wire_calls
from rtcontrol.hosts.deciders import SCRIPTED, STSource
from rtcontrol.hosts.protocol import DeciderSource, DecoderUnavailable
from rtcontrol.hosts.remote_api import is_policy
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.runner import LoopClock, arrival_clock
from rtcontrol.loop.warmup import DecisionFailed
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.checkpoint import bundled_models
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.random_call import check_random
from rtcontrol.run import assembly, interpreting
from rtcontrol.run.model_compatibility import adapt, hysteresis_for, model_for, trained_on, training_notice, with_gate
from rtcontrol.run.user_files import tools_only_agent
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.refusals import as_wire_error, busy_error
from rtcontrol.serve.session_core import CONTROL
from rtcontrol.serve.sessions import GRACE_S
from rtcontrol.settings import SharedOptions
from rtcontrol.telemetry.run_folder import package_version
from rtcontrol_client.wire import PROTOCOL, Code, WireError
from rtcontrol_client.wire.messages import CrowdTerms, FunctionCall, Hello, Program, Welcome
from rtcontrol_client.wire.pictures import PICTURES

EXECUTED = "executed"
CAPABILITIES = [EXECUTED, CONTROL, PICTURES]
MAX_SAFE_BYTES = 1 << 17  # maximum bytes of the arguments of all safe calls
WARMUP = 5  # number of warm-up decisions before the first observation
NO_GOALS = "Instructions are passed to the model unchanged, because the agent has no goals for the interpreter."


@dataclass(frozen=True)
class SessionTerms:
    """The settings that were negotiated with a session's client."""

    hello: Hello
    agent: Agent
    agent_name: str | None  # None if the client sent tools
    model: str
    source: DeciderSource  # builds the session's decider
    config: RunConfig
    ttl_ms: float  # a call's time to live
    trained: bool | None  # whether the model was trained on these tools (None: unknown)
    warnings: tuple[str, ...]
    options: ServeOptions  # the server's settings
    crowd: CrowdTerms | None = None  # None if the client is not a crowd

    def remote(self, session: str) -> RemoteTerms:
        """Return the settings of the session's `RemoteEnvironment`. `session`: the session's token."""
        return RemoteTerms(
            session=session,
            tools=tuple(tool.name for tool in self.agent.tools),
            deadline_ns=self.config.deadline_ns,
            pictures_hz=self.config.record_pictures,
            paced_by_client=self.hello.pacing == "client",
            ttl_ms=self.ttl_ms,
            acknowledges=EXECUTED in self.hello.capabilities,
            reads_arrays=self.agent_name is not None,
        )

    def client_clock(self, arrival: Callable[[int], int | None]) -> LoopClock | None:
        """Return a clock that ticks when the client's observations arrive, or None if the server sets the rate.
        `arrival`: see `arrival_clock`."""
        return arrival_clock(self.config.period_ns, arrival) if self.hello.pacing == "client" else None

    @property
    def ticks_per_s(self) -> float:
        """Return how many ticks a second the session may need. If the client sets the rate, this is an assumption."""
        return min(self.config.hz, self.options.hz_max)

    @property
    def hold_ms(self) -> float:
        """Return for how many milliseconds a call stays active after a miss."""
        hold_ms = self.config.hold_ms
        return self.agent.fallback.hold_ms if hold_ms is None else hold_ms

    def welcome(self, warnings: tuple[str, ...] = (), **loop_state: Any) -> Welcome:
        """Return the welcome message with these settings. `loop_state`: the message's fields about the running loop."""
        config, options = self.config, self.options
        return Welcome(
            protocol=list(PROTOCOL),
            server=Program(name="rtcontrol", version=package_version("rtcontrol") or "", language="python"),
            capabilities=CAPABILITIES,
            agent=self.agent_name,
            tools=self.agent.tools.openai(),
            model=Path(self.model).name,
            model_trained_on_tools=bool(self.trained),
            trained=self.trained,
            safe_call=to_wire_call(self.agent.fallback.safe_call),
            safe_calls=to_wire_calls(self.agent.fallback.safe_calls),
            pacing=self.hello.pacing,
            hz=config.hz,
            period_ms=config.period_ns / 1e6,
            deadline_ms=config.deadline_ns / 1e6,
            ttl_ms=self.ttl_ms,
            max_age_ms=config.max_age_ns / 1e6,
            on_miss="safe" if config.on_miss == "safe" else "hold",
            hold_ms=self.hold_ms,
            calls_per_tick=config.calls_per_tick if config.calls_per_tick > 1 else None,
            crowd=self.crowd,
            heartbeat_ms=options.heartbeat_s * 1e3,
            session_grace_s=GRACE_S,
            limits=options.limits.to_dict(),
            warnings=[*self.warnings, *warnings],
            **loop_state,
        )

    def decider_errors(self) -> AbstractContextManager[None]:
        """Return a context that turns a UserError into a WireError about the client's tools or the agent's model."""
        code = Code.TOOLS if self.agent_name is None else Code.MODEL
        return as_wire_error(code, code.value)

    def summary(self) -> str:
        """Return a log line with the agent or the number of tools, the model and the rate."""
        tools = f"agent {self.agent_name}" if self.agent_name else f"{len(self.agent.tools.schemas)} client tools"
        pace = "client-paced" if self.hello.pacing == "client" else f"{self.config.hz:g} Hz"
        return f"{tools}, model {Path(self.model).name}, {pace}"


def session_error(fault: BaseException, welcomed: bool) -> WireError:
    """Return the wire error for an exception that ended a session's loop or prevented its start. A temporary error is
    not fatal if the client has received a welcome."""
    if isinstance(fault, DecoderUnavailable):
        code = Code.BUSY if fault.full else Code.DECODER
        return WireError(code, fault.what, fault.remedy, retryable=True, fatal=not welcomed)
    if isinstance(fault, DecisionFailed):  # in the first decision the model generated an invalid text value
        hint = "Give each parameter an enum or bounds, no array or recursion, and each tool at most six parameters."
        return _fatal_error(Code.TOOLS, fault.what, hint, "tools")
    if isinstance(fault, UserError):
        return _fatal_error(Code.INSTRUCTION, fault.what, fault.remedy, "instruction")
    problem = " ".join(f"The session failed ({type(fault).__name__}: {fault}).".split())
    if isinstance(fault, OSError) and fault.errno in (errno.EMFILE, errno.ENFILE):
        return busy_error(problem)
    return _fatal_error(Code.INTERNAL, problem, "Send hello again.")


def default_ttl_ms(config: RunConfig) -> float:
    """Return the default time to live of a call, in milliseconds after the capture of its observation."""
    return max(500.0, (2.5 * config.period_ns + config.deadline_ns) / 1e6)


def negotiate(hello: Hello, options: ServeOptions, out: Path) -> SessionTerms:
    """Return the settings for a client's hello. `out`: the folder for records. May take seconds, because it compiles
    the tools' schemas. Raises WireError with the invalid field, the rule and a hint."""
    agent, agent_name = _agent_of_hello(hello, options)
    model = _model_of_hello(hello, options, agent, agent_name)
    agent = replace(adapt(agent, model), model=model, observe=_observe_text_first(agent.observe))
    warnings = list(agent.tools.warnings())
    config = with_gate(_run_config(hello, options, agent, agent_name, out, warnings), model, agent.tools.schemas)
    if (notice := training_notice(agent.tools.schemas, model)) is not None:
        warnings.append(notice)
    ttl_ms = default_ttl_ms(config) if hello.ttl_ms is None else hello.ttl_ms
    if 0 < ttl_ms < (minimum_ms := (config.period_ns + config.deadline_ns) / 1e6) and hello.pacing == "server":
        limit = f"ttl_ms {ttl_ms:g} is less than a period and the deadline together ({minimum_ms:g} ms)"
        warnings.append(f"{limit}: calls expire between two ticks.")
    with as_wire_error(Code.MODEL, "model"):
        source = assembly.decider_source(config, agent, model)
    if options.backup is not None and not isinstance(source, STSource):
        config = _with_backup(config, options, agent, warnings)
    trained = trained_on(agent.tools.schemas, model)
    return SessionTerms(hello, agent, agent_name, model, source, config, ttl_ms, trained, tuple(warnings), options)


def _agent_of_hello(hello: Hello, options: ServeOptions) -> tuple[Agent, str | None]:
    """Return the agent for this hello, and the agent's name (None if the client sent tools)."""
    served = None if options.agent is None else assembly.load_agent(options.agent)
    if hello.agent is not None and hello.tools is not None:
        raise _fatal_error(Code.INVALID, "hello has both an agent and tools.", "Send only one of them.", "agent")
    if hello.tools is not None:
        if served is not None:
            problem = f"This server runs only the agent {served.name}."
            raise _fatal_error(Code.TOOLS, problem, "Send hello without `tools`.", "tools")
        return _agent_of_tools(hello, hello.tools), None
    agents = assembly.bundled_agents() if served is None else {served.name: served}
    name = hello.agent or (None if served is None else served.name)
    if name is None and options.default_tools:
        return _agent_of_tools(hello, list(options.default_tools)), None
    if name is None:
        raise _fatal_error(Code.AGENT, "hello has neither an agent nor tools.", "Send `agent` or `tools`.", "agent")
    if name not in agents:
        problem = f"This server has no agent {name[:64]!r}."
        raise _fatal_error(Code.AGENT, problem, f"Its agents are: {', '.join(agents)}.", "agent")
    agent = agents[name]
    instruction = agent.instruction if hello.instruction is None else hello.instruction
    fallback = _fallback_of_hello(hello, agent.tools, agent.fallback)
    return replace(agent, instruction=instruction, fallback=fallback), agent.name


def _agent_of_tools(hello: Hello, definitions: list[dict[str, Any]]) -> Agent:
    """Return an agent with the tools of `definitions`, and the hello's instruction and safe calls."""
    if hello.instruction is None:
        hint = "Describe the task in `instruction`."
        raise _fatal_error(Code.INSTRUCTION, "A hello with tools needs an instruction.", hint, "instruction")
    try:
        with as_wire_error(Code.TOOLS, "tools"):
            tools = Tools(definitions)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        form = '{"name": ..., "description": ..., "parameters": {"type": "object", "properties": {...}}}'
        problem = f"The tools are not function definitions ({reason})."
        raise _fatal_error(Code.TOOLS, problem, f"Write each tool as {form}.", "tools") from None
    fallback = _fallback_of_hello(hello, tools, Fallback(None))
    return tools_only_agent(hello.client.name, tools, hello.instruction, fallback)


def _fallback_of_hello(hello: Hello, tools: Tools, default: Fallback) -> Fallback:
    hold_ms = default.hold_ms if hello.hold_ms is None else hello.hold_ms
    calls = hello.safe_calls or ([] if hello.safe_call is None else [hello.safe_call])
    if calls:
        return Fallback(hold_ms=hold_ms, calls=validated_calls(tools, calls, fatal=True))
    return replace(default, hold_ms=hold_ms)


def validated_calls(tools: Tools, calls: Sequence[FunctionCall], fatal: bool = False) -> list[Call]:
    """Validate safe calls against the tools, and return them. Raises WireError (tools)."""
    if memory_bytes([call.arguments for call in calls]) > MAX_SAFE_BYTES:  # limited, because each miss sends them
        problem = f"The safe calls take more than {MAX_SAFE_BYTES >> 10} KiB."
        raise WireError(Code.TOOLS, problem, "Send shorter safe calls.", field="safe_calls", fatal=fatal)
    try:
        return [tools.validate(Call(call.name, dict(call.arguments))) for call in calls]
    except InvalidCall as error:
        problem, hint = f"A safe call is invalid: {error}.", "Send safe calls that the tools allow, with all arguments."
        raise WireError(Code.TOOLS, problem, hint, field="safe_calls", fatal=fatal) from None


def _model_of_hello(hello: Hello, options: ServeOptions, agent: Agent, agent_name: str | None) -> str:
    requested = hello.model or options.model or (agent.model if agent_name is not None else None)
    # A client may not send a path, because clients must not choose which files of this machine the server loads.
    plain = [m for m in SCRIPTED if m != "expert" or agent_name in assembly.EXPERTS or agent.expert is not None]
    defaults = [options.model, agent.model if agent_name else None]
    allowed = sorted({*bundled_models(), *plain, *(model for model in defaults if model)})
    if requested is not None and requested not in allowed:
        names = ", ".join(Path(m).name for m in allowed)
        problem = f"This server has no model {requested[:64]!r} for clients."
        raise _fatal_error(Code.MODEL, problem, f"Set `model` to one of these, or leave it out: {names}.", "model")
    with as_wire_error(Code.MODEL, "model"):
        model = model_for(agent.tools.schemas, requested)
    if model == "random":
        with as_wire_error(Code.TOOLS, "tools"):
            check_random(agent.tools.schemas)
    return model


def _observe_text_first(observe: Callable[[Mapping[str, Any]], str]) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that returns the client's text if there is one, else the result of `observe`."""

    def read(data: Mapping[str, Any]) -> str:
        text = getattr(data, "text", None)
        return observe(data) if text is None else str(text)

    return read


def _run_config(
    hello: Hello, options: ServeOptions, agent: Agent, agent_name: str | None, out: Path, warnings: list[str]
) -> RunConfig:
    max_calls = min(options.calls_per_tick, agent.history + 1)
    hz = options.hz if hello.hz is None else hello.hz
    shared = {field.name: getattr(options, field.name) for field in fields(SharedOptions)}
    shared |= {"standby": False, "backup": None, "tools": None}  # the pool, not the session, handles standby and backup
    with as_wire_error(Code.INVALID):
        requested: dict[str, Any] = {
            "out": out,
            "hz": hz if hello.pacing == "client" else _limited_value("hz", hz, options.hz_max, warnings),
            "deadline_ms": hello.deadline_ms,
            "max_age_ms": hello.max_age_ms,
            "calls_per_tick": _limited_value("calls_per_tick", hello.calls_per_tick or 1, max_calls, warnings),
            "instruction": agent.instruction,
            "agent": agent.name,
            "model": agent.model,
            "clock": "lockstep" if hello.pacing == "client" else "wall",
            "on_miss": hello.on_miss or "hold",
            "hold_ms": agent.fallback.hold_ms,
            "warmup": 0 if agent.model in SCRIPTED or is_policy(agent.model) else WARMUP,
            "first_observation_s": float("inf"),
        }
        return RunConfig(env="remote", **shared | requested | _optional_settings(options, agent, agent_name, warnings))


def _limited_value(name: str, requested: float, limit: float, warnings: list[str]) -> Any:
    """Return the requested value. If the value is above `limit`, append a warning and return `limit`."""
    if requested > limit:
        warnings.append(f"{name} {requested:g} is above the server's limit. The session uses {limit:g}.")
    return min(requested, limit)


def _optional_settings(
    options: ServeOptions, agent: Agent, agent_name: str | None, warnings: list[str]
) -> dict[str, Any]:
    """Return the server's hysteresis and interpreter. If the session cannot use one of them, replace it by None and
    append a warning."""
    hysteresis, interpreter = options.hysteresis, options.interpreter
    try:
        hysteresis_for(hysteresis, agent.model)
    except UserError as error:
        hysteresis = None
        warnings.append(f"This session has no hysteresis. {error.what}")
    if interpreter is not None and (agent_name is None or interpreting.goal_tools(agent) is None):
        interpreter = None
        warnings.append(NO_GOALS)
    return {"hysteresis": hysteresis, "interpreter": interpreter}


def _with_backup(config: RunConfig, options: ServeOptions, agent: Agent, warnings: list[str]) -> RunConfig:
    """Return the settings with the server's backup model. It decides if the session's remote model is late."""
    try:
        backup = model_for(agent.tools.schemas, options.backup)
        # A scripted backup (such as "expert") cannot read the warm-up observation, so omit the warm-up.
        return replace(config, backup=backup, warmup=0 if backup in SCRIPTED else WARMUP)
    except UserError as error:
        warnings.append(f"This session has no backup. {error.what}")
        return config


def _fatal_error(code: Code, problem: str, hint: str, field: str | None = None) -> WireError:
    return WireError(code, problem, hint, field=field, fatal=True)
