"""What comes before the first tick of a run, and after its last."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from rtcontrol.envs.base import Acknowledging, Observation, WorldError
from rtcontrol.hosts.layered import executes_plans
from rtcontrol.loop import errors
from rtcontrol.loop.interpreter import Interpretation
from rtcontrol.loop.ports import read
from rtcontrol.loop.running import RunningLoop
from rtcontrol.loop.shell import TickShell
from rtcontrol.loop.warmup import Warmup, first_look
from rtcontrol.records import Closed, Left, Overdue, Replied

UNSAFE = "THE SAFE CALL IS NOT IN FORCE in the world: {}. Whatever acted last may act still: stop it by other means."
OVER = "The safe call did not act: the world's last episode had ended, and it takes no more calls."


def prepare(loop: RunningLoop) -> None:
    """Understand the first instruction, start the decoder, warm up. Raises UserError."""
    state = loop.state
    if loop.interpretation is not None:
        _understand(loop, loop.interpretation)
        if state.stopped():
            return
    state.phase = f"starting the decoder (host {loop.host.name})"
    state.host_info = loop.host.start(state.stopped)
    if note := state.host_info.get("prefix_note"):
        loop.tell(f"{str(note).rstrip('.')}; it was computed anew")
    if not state.stopped():
        state.phase = "warming up"
        _warm_up(loop, loop.options.sample)


def _understand(loop: RunningLoop, interpretation: Interpretation) -> None:
    """Find out what the run begins with, in canonical words. UserError where it is not understood."""
    state = loop.state
    if state.stopped():
        return
    state.phase = f"starting the interpreter ({interpretation.interpreter.name})"
    interpretation.interpreter.start()
    if state.stopped():
        return
    state.phase = "understanding the instruction"
    loop.instructions.begin(interpretation.first(loop.instruction, state.stopped))


def launch(loop: RunningLoop) -> None:
    """Start the world. It runs on from here, so all that takes time and can be done before is done."""
    config, state, env = loop.config, loop.state, loop.env
    loop.recorder.file.keep()
    env.instruct(loop.instruction)
    env.start(config.clock, config.seed, config.episodes)  # type: ignore[arg-type]
    state.launched = True
    state.safe_in_force, state.unsafe = False, True  # until the end shows that it is
    loop.shell.ports.retake()
    loop.shell.ports.actuator.start()
    first = first_look(config, env, state.stopped, loop.tell)
    if loop.options.sample is None:
        _warm_up(loop, first)
    loop.recorder.write({"start": {"host_info": state.host_info, "warmup": state.warmup.to_dict()}})


def _warm_up(loop: RunningLoop, seen: Observation | None) -> None:
    """Decide what was seen a few times on the started host; nothing where there is none."""
    config, host, warmup = loop.config, loop.host, Warmup(loop.config.pipeline)
    if seen is not None and config.warmup:
        make = loop.shell.core.requests.make
        warmup.decide(host, lambda tick: make(tick, seen, read(loop.agent, seen.data)), config.warmup, config.warmup_s)
    loop.state.warmup = warmup
    # By a plan's steps ticks are in time that the plan itself is not.
    if not executes_plans(host) and (warning := warmup.warning(config)):
        loop.tell(warning)


def finish(loop: RunningLoop, patience_s: float) -> None:
    """Bring the safe call in force, waiting for it so long, and close everything."""
    with ExitStack() as then:  # each of them, whatever the one before raises; the last comes first
        then.callback(loop.env.close)
        then.callback(loop.host.close)
        then.callback(write_end, loop)
        then.callback(_close_world, loop)
        if loop.state.launched:
            _leave(loop, patience_s)


def _leave(loop: RunningLoop, patience_s: float) -> None:
    state, shell = loop.state, loop.shell
    actuator = shell.ports.actuator
    with ExitStack() as then:  # whatever interrupts what comes before, the safe call is demanded
        then.callback(_demand_safe, shell)
        actuator.disarm()
        loop.env.conclude()
        loop.operator.end()
    ended = actuator.wait_safe(patience_s)
    state.safe_in_force = ended and not actuator.over
    state.unsafe = not ended or (actuator.over and state.failure is not None)
    if not state.safe_in_force:
        why = "its episode had ended" if ended else f"it did not take it within {patience_s:g} s"
        loop.tell(UNSAFE.format(why) if state.unsafe else OVER)
    sampler = shell.ports.sampler
    shell.dispatch(Overdue(state.t_end_ns, sampler.sample(shell.core.grid.next_release_ns), sampler.runs()))
    # The loop may have been stopped while replies waited: they are evidence of misses. A wake ends the first wait.
    while shell.core.awaits_late and (reply := loop.host.wait(0) or loop.host.wait(0)) is not None:
        shell.dispatch(Replied(reply))


def _demand_safe(shell: TickShell) -> None:
    try:
        shell.dispatch(Left())
    except KeyboardInterrupt:
        shell.dispatch(Left())
        raise


def _close_world(loop: RunningLoop) -> None:
    shell = loop.shell
    shell.ports.actuator.close()
    if loop.interpretation is not None:
        loop.interpretation.close()
    shell.collect()
    heard = loop.env.heard if isinstance(loop.env, Acknowledging) else None
    shell.dispatch(Closed(loop.env.episodes if loop.state.launched else (), heard))
    shell.ports.sampler.close()


def write_end(loop: RunningLoop) -> None:
    """Write the record's last line, unless it is written: an interrupt of `run` may have cut it short."""
    state, core = loop.state, loop.shell.core
    if not state.end_written:
        # What is still in flight is no release: nobody waited for it until its deadline. What was skipped before it is.
        in_flight = core.open
        end: dict[str, Any] = {"end": state.ended_by, "t_s": core.ledger.t_s(state.t_end_ns), "open": len(in_flight)}
        for tick in in_flight:
            if tick.skip:
                end |= tick.skip | {"skipped": tick.skip["skipped"] + end.get("skipped", 0)}
        loop.recorder.write({**end, "safe_in_force": state.safe_in_force if state.launched else None})
        state.end_written = True


def broke_down(loop: RunningLoop, error: WorldError) -> str:
    """Record that the world's own code raised. Return what people are told, in one sentence."""
    cause = error.__cause__ or error
    text, place = errors.text(cause), errors.where(cause)
    line = {"fault": "world", "t_s": loop.now_s(), "error": text}
    if place is not None:
        line["where"] = place
    loop.recorder.write(line)
    what = text if place is None else f"{text} ({place})"
    return f"The environment {loop.env.name} broke down: {what.rstrip('.')}. " + (
        "The run ends with the safe call; mend it there." if loop.state.launched else "It never began; mend it there."
    )
