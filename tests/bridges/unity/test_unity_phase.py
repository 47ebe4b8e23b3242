"""The C# client looks at the world just in time for the server's ticks: the conformance vectors of the phase."""

from __future__ import annotations

import msgpack

from tests.bridges.unity.mono import Driver
from tests.conformance import load


def test_instants_to_look_are_those_of_the_vectors(core: Driver) -> None:
    asked = 0
    for case in load("phase"):
        core.ask(f"phase {case['period_ns']}")
        for number, step in enumerate(case["steps"]):
            if "ping" in step:
                core.ask("sample " + " ".join(map(str, step["ping"])))
            elif "next" in step:
                asked += 1
                found = core.ask(f"phase_next {step['next']} {step['release_ns']}")
                assert found == step["due_ns"], (case["name"], number)
            elif "observed" in step:
                core.ask(f"phase_observed {step['now_ns']} {step['observed']}")
            else:
                assert "heard" in step, step
                core.ask(f"phase_heard {step['now_ns']} {msgpack.packb(step['heard']).hex()}")
    assert asked > 50
