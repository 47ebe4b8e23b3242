"""The same goals while the world does not wait: the control loop itself, in real time."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.envs.base import Episode
from rtcontrol.envs.evaluate import Case, Played
from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.envs.skill import Judged, Skill
from rtcontrol.evaluation.policies import ScoringGate
from rtcontrol.hosts.deciders import ExpertSource
from rtcontrol.hosts.protocol import DeciderSource
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.loop import ControlLoop, LoopOptions
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.telemetry import report
from rtcontrol.telemetry.recorder import Recorder

STARTING_S = 30.0  # beside what the episodes may take
# What is kept of a report.
COUNTS = ("releases", "misses", "skipped_releases")
FIGURES = ("miss_rate", "misses_by_cause", "latency_ms")


def expert_source(skill: Skill) -> DeciderSource:
    """The skill's expert, as whatever decides in a loop."""
    return ExpertSource(lambda request: skill.expert_policy([(request.instruction, request.observation)])[0])


def fly_wall(
    skill: Skill,
    agent: Agent,
    config: RunConfig,
    source: DeciderSource,
    cases: Sequence[Case],
    longest_s: float,
) -> tuple[list[Played], dict[str, Any]]:
    """These cases of one goal, told one thing, on consecutive seeds, in one run at the config's rate; its counts.

    UserError where the world breaks down, or no decoder can be had."""
    first = cases[0]
    assert all((case.instruction, case.seed) == (first.instruction, first.seed + i) for i, case in enumerate(cases))

    def judged() -> Judged:
        world = skill.make()
        world.judge_by(first.goal)
        return world

    env = PacedEnvironment.of(skill.name, judged)
    with closing(env), tempfile.TemporaryDirectory(prefix="rtcontrol-score-") as folder:
        host = assembly.host(config, source, config.model or "", agent)
        recorder = Recorder(Path(folder) / "record.mcap", config.header(agent.fallback.hold_ms, agent))
        loop = ControlLoop(config, agent, env, host, recorder, LoopOptions(sample=env.preview(first.seed)))
        try:
            loop.run()
        finally:
            recorder.close()
    if failed := loop.failure or env.thread.fault:
        raise UserError(failed, "Correct it there.")
    made = report.build(loop.account, "record.mcap", ended_by=loop.ended_by)
    done = {episode.seed: episode for episode in env.episodes}
    missing = {"end": "no end"}
    flown = [done.get(case.seed, Episode(case.seed, 0.0, False, longest_s, missing)) for case in cases]
    if loop.ended_by == "host":
        raise UserError("The decoder was lost for good.", "Give the same command again: with --json it goes on there.")
    figures = {name: made[name] for name in (*COUNTS, *FIGURES)}
    return [Played(case, episode, {}) for case, episode in zip(cases, flown, strict=True)], figures


def wall_config(
    env: str,
    agent: Agent,
    model: str,
    engine: str,
    hz: float,
    gate: ScoringGate,
    cases: Sequence[Case],
    longest_s: float,
) -> RunConfig:
    """The settings of such a run; it decides in this process."""
    return RunConfig(
        env=env,
        agent=agent.name,
        model=model,
        engine=engine,
        hz=hz,
        host="inprocess",
        instruction=cases[0].instruction,
        seed=cases[0].seed,
        episodes=len(cases),
        duration_s=STARTING_S + longest_s * len(cases),
        min_confidence={gate.head: gate.least},
        record_observations="no",
    )
