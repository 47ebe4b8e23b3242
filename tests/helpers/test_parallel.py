"""What of the suite runs at once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from tests.helpers.parallel import ROOT, SERIAL, Turns, order, unit


def test_real_time_tests_run_with_their_like_alone_and_no_more_of_them_than_cores(tmp_path: Path) -> None:
    running, seen, lock = {True: 0, False: 0}, set(), threading.Lock()

    def worker(number: int) -> None:
        turns, chance = Turns(tmp_path, 2), Random(number)
        kinds = [chance.random() < 0.5 for _ in range(20)]
        for realtime, following in zip(kinds, [*kinds[1:], False], strict=True):
            turns.begin(realtime)
            with lock:
                running[realtime] += 1
                seen.add((running[True], running[False]))
            time.sleep(0.002)
            with lock:
                running[realtime] -= 1
            turns.end(realtime and following)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(worker, range(4)))
    assert seen <= {(1, 0), (2, 0), *((0, n) for n in range(1, 5))}
    assert (2, 0) in seen and (0, 2) in seen


def test_real_time_tests_come_first_and_what_starts_ray_is_one_unit() -> None:
    loop, ray = "tests/rtcontrol/loop/test_actuator.py::test_x[1]", "tests/rtcontrol/hosts/test_ray_pool.py::test_x"
    parts, causes = "tests/rtcontrol/hosts/test_ray_pool_parts.py", "tests/rtcontrol/loop/test_attribution.py"
    assert all((ROOT / nodeid.partition("::")[0]).is_file() for nodeid in (loop, ray, parts, causes))
    late = f"{causes}::test_every_step_of_a_tick_has_its_stamp_in_order"
    assert unit(late) != unit(f"{causes}::test_x") == causes and unit(ray) == unit(f"{parts}::test_x") == SERIAL
    nodeids = (loop, late, ray, f"{causes}::test_x", "tests/models/x.py::t")
    assert [order(nodeid) for nodeid in nodeids] == [0, 0, 1, 2, 3]
