"""Warm up the decoder by decisions before the first tick, and measure the rate that the machine can reach."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rtcontrol.envs.base import Environment, Observation
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, DecoderUnavailable, Host
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.errors import UserError

TIMEOUT_S = 120.0
MOST = 40  # maximum number of rounds of decisions; enough to measure the 90th percentile (p90)
MARGIN = 0.8  # warn if the rate is more than 80 % of the rate that the p90 allows


class DecisionFailed(UserError):
    """The error that a decider accepted a request, but returned no decision."""


@dataclass
class Warmup:
    """The warm-up, with the round-trip times of its decisions in order. `pipeline`: the number of requests at once."""

    pipeline: int = 1
    round_trip_ms: list[float] = field(default_factory=list)

    @property
    def p90_ms(self) -> float:
        """Return the 90th percentile of all round-trip times except the first, or 0 if there are none."""
        warm = self.round_trip_ms[1:]
        return float(np.percentile(warm, 90)) if warm else 0.0

    @property
    def max_hz(self) -> float:
        """Return the rate at which nine of ten decisions would end before the next release, or 0 if not measured."""
        return 1e3 * self.pipeline / self.p90_ms if self.p90_ms else 0.0

    def warning(self, config: RunConfig) -> str | None:
        """Return a warning for the user if decisions take too long for the rate or the deadline, else None."""
        if config.clock != "wall" or not self.p90_ms:
            return None
        if config.hz > MARGIN * self.max_hz:
            limit, hint = f"--hz {config.hz:g} is above", f"lower --hz to {MARGIN * self.max_hz:.3g}"
        elif self.p90_ms > MARGIN * config.deadline_ns / 1e6:
            limit, hint = (
                f"loop.deadline_ms={config.deadline_ns / 1e6:g} is below",
                f"give {self.p90_ms / MARGIN:.3g} ms",
            )
        else:
            return None
        took = f"in the warm-up one of ten decisions took {self.p90_ms:.3g} ms or longer ({self.max_hz:.3g} Hz)"
        return f"{limit} what this machine reaches: {took}. Expect misses; {hint}, or use a smaller model."

    def to_dict(self) -> dict[str, Any]:
        times = self.round_trip_ms
        if not times:
            return {"decisions": 0}
        spread = {"first": times[0], "median": statistics.median(times), "p90": self.p90_ms, "max": max(times)}
        shown = {f"{name}_ms": round(ms, 3) for name, ms in spread.items()}
        return {"decisions": len(times), **shown, "max_hz": round(self.max_hz, 1)}

    def decide(self, host: Host, ask: Callable[[int], DecisionRequest], rounds: int, seconds: float = 0.0) -> None:
        """Make `rounds` rounds of decisions with `pipeline` requests each, and more rounds (up to `MOST`) until
        `seconds` have passed. `ask` builds the request for a tick number, which is negative.

        Raises UserError if the decider fails, or if a remote decider loses all requests, and DecoderUnavailable after
        TIMEOUT_S without a reply."""
        lost: DecisionReply | None = None
        decided = 0
        until = time.monotonic() + seconds
        while len(self.round_trip_ms) < rounds or (len(self.round_trip_ms) < MOST and time.monotonic() < until):
            first = -1 - len(self.round_trip_ms) * self.pipeline
            ticks = range(first, first - self.pipeline, -1)
            began = time.monotonic_ns()
            for tick in ticks:
                host.submit(ask(tick))
            for reply in _replies(host, set(ticks)):
                decided += reply.error is None
                if reply.loss is not None:
                    lost = reply
                elif reply.error is not None:
                    raise DecisionFailed(
                        f"The decider failed on the first observation: {reply.error.rstrip('.')}.",
                        "Check the model, the agent's tools and the instruction (`rtcontrol models info MODEL`).",
                    )
            self.round_trip_ms.append((time.monotonic_ns() - began) / 1e6)
        if lost is not None and not decided:
            raise DecisionFailed(
                f"All {len(self.round_trip_ms) * self.pipeline} warm-up requests failed; the last one: {lost.error}.",
                "Check the endpoint's address, its model and its key (docs/deciders.md).",
            )


def _replies(host: Host, ticks: set[int]) -> Iterator[DecisionReply]:
    """Yield the replies to these ticks. Raises UserError if the decider refuses a request, and DecoderUnavailable after
    TIMEOUT_S without a reply."""
    until = time.monotonic() + TIMEOUT_S
    while ticks:
        reply = host.wait(50_000_000)
        if reply is not None and reply.tick in ticks:
            ticks.remove(reply.tick)
            if reply.user_error is not None:
                raise UserError(*reply.user_error)
            yield reply
        elif time.monotonic() > until:
            raise DecoderUnavailable(
                f"The decoder did not answer within {TIMEOUT_S:g} s during the warm-up.",
                "Try `--host inprocess`, or a smaller model.",
            )


def first_observation(
    config: RunConfig, env: Environment, stopped: Callable[[], bool], notify: Callable[[str], None]
) -> Observation | None:
    """Wait for the environment's first observation, and return it. Return None after a timeout."""
    give_up = time.monotonic() + config.first_observation_s
    # `wait_for_first_observation` of a remote environment returns as soon as the observation comes.
    pause = getattr(env, "wait_for_first_observation", lambda: time.sleep(0.002))
    while (first := env.latest()) is None and time.monotonic() < give_up and not stopped():
        pause()
    if first is None and math.isfinite(config.first_observation_s):
        notify(f"no observation came within {config.first_observation_s:g} s: the run starts without one")
    return first
