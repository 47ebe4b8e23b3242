"""The C# client looks at the world just in time for the server's ticks: the conformance vectors of the phase."""

from __future__ import annotations

import json

from tests.bridges.unity.mono import Driver
from tests.conformance import load

MS = 1_000_000


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
                core.ask(f"phase_heard {step['now_ns']} {json.dumps(step['heard']).encode().hex()}")
    assert asked > 50


def test_call_that_answers_an_older_observation_tells_nothing_of_how_long_one_waits(core: Driver) -> None:
    core.ask(f"phase {100 * MS}")
    waited = []
    for seq, tick in ((1, 1700), (2, 1500)):
        core.ask(f"phase_observed {1395 * MS} {seq}")
        call = {"status": "fresh", "seq_obs": seq, "release_ns": tick * MS, "t_server_ns": (tick + 1) * MS}
        call["timing"] = {"age_ms": tick + 1 - 1397}
        core.ask(f"phase_heard {(tick + 2) * MS} {json.dumps(call).encode().hex()}")
        waited.append(core.ask("phase_waited"))
    assert waited == [None, 103.0]
