"""How much code a tick goes through, from its release to its line in the record: few enough files to be read in one
sitting, counted in a real run with the Ray host, on the threads of the loop, the actuator and the host."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.loop import ControlLoop
from rtcontrol.run import assembly
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol.telemetry.recorder import Recorder
from tests.helpers.processes import ROOT

FLOORS = tuple(f"{ROOT / floor}/" for floor in ("rtcontrol", "envs", "agents", "models", "bridges"))
# The world's own thread, the heartbeat's, the recorder's, and Ray's are not on a tick's way. The decoder is another
# process, whose functions cannot be counted from here.
NOT_THE_TICKS = ("env-", "heartbeat", "recorder", "ray_", "Thread-")
FROM, TO = 20, 60


def test_a_tick_crosses_at_most_ten_files_and_forty_functions(tmp_path: Path) -> None:
    config = RunConfig(env="lander", agent="lander", model="expert", out=tmp_path, hz=50, duration_s=1.5, warmup=5)
    agent, env = assembly.agent("lander"), assembly.environment("lander", None)
    source = assembly.decider(config, agent, "expert")
    recorder = Recorder(tmp_path / "record.mcap", config.header(agent.fallback.hold_ms, agent))
    loop = ControlLoop(config, agent, env, assembly.host(config, source, "expert"), recorder)
    seen: dict[int, set[tuple[str, CodeType]]] = defaultdict(set)

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and FROM <= loop._outcomes.newest_k < TO:
            thread = threading.current_thread().name
            if frame.f_code.co_filename.startswith(FLOORS) and not thread.startswith(NOT_THE_TICKS):
                seen[loop._outcomes.newest_k].add((thread, frame.f_code))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        loop.run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    recorder.close()
    on_time = {
        line["k"]
        for line in read_record(tmp_path / "record.mcap")
        if line.get("kind") == "call" and "cause" not in line
    }
    steady = [seen[k] for k in range(FROM + 1, TO - 1) if {k, k + 1} <= on_time]
    assert len(steady) >= 5
    # The middle one: a call that was never made before goes through the tools, too.
    crossed = sorted(steady, key=len)[len(steady) // 2]
    functions = sorted({(code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname) for _, code in crossed})
    files = sorted({file for file, _ in functions})
    assert {thread for thread, _ in crossed} >= {"MainThread", "actuator"}
    assert len(files) <= 10, files
    assert len(functions) <= 40, functions
