"""What this machine can do, and the command that mends what it cannot."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import rtcontrol.models
from rtcontrol.telemetry.run_folder import cpu_model, version


@dataclass(frozen=True)
class Finding:
    """What was found. One that is not `ok` but `optional` keeps nothing from working."""

    ok: bool
    what: str
    remedy: str = ""
    optional: bool = False


def examine() -> Iterator[Finding]:
    """The findings, one after the other; takes about three seconds."""
    machine = f"{platform.system()} {platform.release()}, {cpu_model()}, {os.cpu_count()} cores"
    yield Finding(True, f"{machine}, Python {platform.python_version()}")
    for package in ("torch", "transformers", "llguidance", "ray", "pyzmq", "gymnasium", "carla"):
        found, optional = version(package), package == "carla"
        hint = "pip install 'rtcontrol[carla]' (only for --env carla-bridge)" if optional else "pip install rtcontrol"
        yield Finding(found is not None, f"{package} {found or 'is not installed'}", "" if found else hint, optional)
    yield _checkpoint()
    yield _gpu()
    yield _wake_up()


def _checkpoint() -> Finding:
    """Whether the bundled model is there whole (git without LFS leaves a pointer of a hundred bytes)."""
    weights = Path(rtcontrol.models.__path__[0]) / "zoo" / "lander" / "model.safetensors"
    size = weights.stat().st_size if weights.is_file() else 0
    fine = size > 100_000
    return Finding(fine, f"bundled model lander, {size / 1e6:.1f} MB", "" if fine else "git lfs pull")


def _gpu() -> Finding:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Finding(False, "no NVIDIA GPU (small models do not need one)", "", optional=True)
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(False, f"nvidia-smi does not answer ({error})", "reload the NVIDIA driver")
    names = "; ".join(answer.stdout.strip().splitlines())
    if (version("torch") or "").endswith("+cpu"):
        return Finding(False, f"GPU {names}, but this torch cannot use it", "pip install --force-reinstall torch")
    return Finding(True, f"GPU {names}")


def _wake_up() -> Finding:
    """Sleeps to an absolute grid at 100 Hz for two seconds, as cyclictest does."""
    late = []
    due = time.monotonic_ns()
    for _ in range(200):
        due += 10_000_000
        time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
        late.append((time.monotonic_ns() - due) / 1e6)
    p50, p99 = np.percentile(late, [50, 99])
    text = f"wake-up lateness p50 {p50:.3f} ms, p99 {p99:.3f} ms, max {max(late):.3f} ms"
    fine = bool(p99 < 1.0)
    return Finding(fine, text, "" if fine else "close what else runs here, or run by `chrt -f 50`", True)
