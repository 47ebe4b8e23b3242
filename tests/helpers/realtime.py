"""Tests marked `realtime` judge the wall clock, but none that a starved machine spoilt."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

ATTEMPTS = 5
# Before an attempt anew: a machine that stands still does so for a while. So long, in s, it must have kept time, and
# so long that is waited for: each time, and by one process in all.
CALM_S, PATIENCE_S, PATIENCE_IN_ALL_S = 0.5, 30.0, 300.0
# A thread that asked for 2 ms and got them so much later: a period of the fastest loops flown here is 10 ms.
LATE_S = 0.004


@contextmanager
def latenesses() -> Iterator[list[float]]:
    """How late a thread of this process woke, in s, while the block ran."""
    found, over = [0.0], threading.Event()

    def look() -> None:
        while not over.is_set():
            asked = time.monotonic() + 0.002
            time.sleep(0.002)
            found.append(time.monotonic() - asked)

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield found
    finally:
        over.set()
        watch.join()


class Patience:
    """Waits for a machine that keeps time, as long as it lasts."""

    def __init__(self) -> None:
        self.left_s = PATIENCE_IN_ALL_S

    def wait(self) -> None:
        began = time.monotonic()
        until = began + min(PATIENCE_S, self.left_s)
        while time.monotonic() < until:
            with latenesses() as late:
                time.sleep(CALM_S)
            if max(late) < LATE_S:
                break
        self.left_s -= time.monotonic() - began


PATIENCE = Patience()


def pytest_collection_finish() -> None:
    """Each run collects all garbage before it begins: not over every test that there is."""
    gc.collect()
    gc.freeze()
    # Each run asks whether anything is frozen. To count it takes as long as to collect it, and nothing thaws it.
    frozen = gc.get_freeze_count()
    gc.get_freeze_count = lambda: frozen


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Of a test marked `realtime`; each attempt gets a folder of its own as its `tmp_path`."""
    if pyfuncitem.get_closest_marker("realtime") is None:
        return None
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    for attempt in range(ATTEMPTS):
        with latenesses() as late:
            try:
                pyfuncitem.obj(**arguments)
                return True
            except AssertionError:
                if attempt == ATTEMPTS - 1 or max(late) < LATE_S:
                    raise
                # The suite's summary says how often this happened.
                warnings.warn(f"flown again: the machine woke it {1e3 * max(late):.0f} ms late", stacklevel=1)
        PATIENCE.wait()
        if "tmp_path" in arguments:
            arguments["tmp_path"] = pyfuncitem.funcargs["tmp_path"] / f"again-{attempt}"
            arguments["tmp_path"].mkdir()
    return True
