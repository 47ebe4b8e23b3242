"""The checks of `rtcontrol doctor`: what works on this machine, and commands that fix problems."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import rtcontrol.models
from rtcontrol.models.processors import usable_processors
from rtcontrol.telemetry.run_folder import cpu_model, package_version

OK, OPTIONAL, MISSING = "ok  ", "--  ", "no  "  # OPTIONAL is for missing parts that are not required


def run_checks() -> Iterator[tuple[str, str, str]]:
    """Yield the sign, a description, and the command that fixes a problem, for each check. Takes 3 seconds."""
    cores = f"{usable_processors()} of {os.cpu_count()} cores"
    machine = f"{platform.system()} {platform.release()}, {cpu_model()}, {cores}"
    yield OK, f"{machine}, Python {platform.python_version()}", ""
    for package in ("torch", "transformers", "llguidance", "ray", "pyzmq", "gymnasium"):
        yield _check_package(package, MISSING, "pip install rtcontrol")
    yield _check_package("carla", OPTIONAL, "pip install 'rtcontrol[carla]' (only for --env carla-bridge)")
    # Without git LFS, the file of the weights is only a pointer of a hundred bytes.
    weights = Path(rtcontrol.models.__path__[0]) / "zoo" / "lander" / "model.safetensors"
    size = weights.stat().st_size if weights.is_file() else 0
    whole = size > 100_000
    yield OK if whole else MISSING, f"bundled model lander, {size / 1e6:.1f} MB", "" if whole else "git lfs pull"
    yield _check_gpu()
    yield _measure_wake_up()


def _check_package(name: str, missing: str, hint: str) -> tuple[str, str, str]:
    installed = package_version(name)
    return OK if installed else missing, f"{name} {installed or 'is not installed'}", "" if installed else hint


def _check_gpu() -> tuple[str, str, str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return OPTIONAL, "no NVIDIA GPU (small models do not need one)", ""
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return MISSING, f"nvidia-smi failed ({error})", "reload the NVIDIA driver"
    names = "; ".join(answer.stdout.strip().splitlines())
    if (package_version("torch") or "").endswith("+cpu"):
        return MISSING, f"GPU {names}, but this torch cannot use it", "pip install --force-reinstall torch"
    return OK, f"GPU {names}", ""


def _measure_wake_up() -> tuple[str, str, str]:
    """Measure how late a sleeping thread wakes, 100 times a second for 2 seconds, as cyclictest does."""
    late = []
    due = time.monotonic_ns()
    for _ in range(200):
        due += 10_000_000
        time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
        late.append((time.monotonic_ns() - due) / 1e6)
    p50, p99 = np.percentile(late, [50, 99])
    text = f"wake-up lateness p50 {p50:.3f} ms, p99 {p99:.3f} ms, max {max(late):.3f} ms"
    fine = bool(p99 < 1.0)
    return OK if fine else OPTIONAL, text, "" if fine else f"close other programs, or {_real_time_hint()}"


def _real_time_hint() -> str:
    """Return how to run with real-time priority, which the decoder's process inherits, on this machine."""
    try:
        policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        os.sched_setscheduler(0, policy, parameters)
    except (AttributeError, OSError):
        return "run `chrt -f 50 rtcontrol ...` (needs `ulimit -r 99`, in a container `docker run --cap-add SYS_NICE`)"
    return "run `chrt -f 50 rtcontrol ...`, which reaches the decoder's process, too"
