"""Settings for all tests: a separate cache, and the shared data folder from an environment variable."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

pytest_plugins = ["tests.helpers.orphans", "tests.helpers.tiers"]

# A busy machine must not fail a property test, so there are no deadlines.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Of a mutant it is enough to know that an example is found.
settings.register_profile("mutants", settings.get_profile("unhurried"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("unhurried")

# A shell starts what it runs in the background, or under nohup, with these ignored, and so would every child here be.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Of torch, here and in the processes that tests start: several that share the cores wait for each other's threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Compiled code is kept, whatever this shell says: else each process that tests start compiles all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_collection_finish() -> None:
    """Freeze all objects after the collection, so that the garbage collection of each run does not scan all tests."""
    gc.collect()
    gc.freeze()
    frozen = gc.get_freeze_count()
    gc.get_freeze_count = lambda: frozen


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["RTCONTROL_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def data() -> Path:
    """Return the folder of third-party test data, or skip the test if there is none."""
    folder = os.environ.get("RTCONTROL_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("RTCONTROL_DATA names no folder with the third-party test data")
    return Path(folder)
