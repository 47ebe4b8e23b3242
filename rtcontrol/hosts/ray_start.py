"""Starts Ray small and quiet, or joins the one that is there."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rtcontrol
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

REMEDY = "Use `--host inprocess`, which needs no Ray, or see `rtcontrol doctor`."


def source_root() -> str | None:
    """Where an uninstalled source tree stands (its workers must find it too), None when installed."""
    root = Path(rtcontrol.__file__).resolve().parent.parent
    return str(root) if (root / "pyproject.toml").is_file() else None


def init_ray() -> bool:
    """Start a small Ray on this machine, or join the cluster that RAY_ADDRESS names; False when it runs already.

    UserError when it cannot start.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    try:
        import ray

        if ray.is_initialized():
            return False
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address := os.environ.get("RAY_ADDRESS"):
            _reach(address)
        else:
            options |= {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80_000_000}
        with _signals_kept():
            ray.init(**options)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"Ray cannot start: {reason.rstrip('.')}.", REMEDY) from error
    _hush()
    return True


def _reach(address: str) -> None:
    # Ray itself tries for minutes, and then ends the whole process.
    name, _, port = address.rpartition(":")
    if name and "/" not in name and port.isdigit():
        try:
            socket.create_connection((name, int(port)), timeout=5.0).close()
        except OSError as error:
            raise ConnectionError(f"nothing answers at RAY_ADDRESS={address} ({error})") from error


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    # ray.init installs a SIGTERM handler of its own, which would end the run without its safe call.
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in kept.items():
                signal.signal(number, handler)


def _hush() -> None:
    # A worker's death is our business and no surprise: Ray's own notice of it would be printed over the live view,
    # whatever log_to_driver says.
    with contextlib.suppress(ImportError, AttributeError):
        from ray._private import worker

        worker.print_to_stdstream = lambda data, *args, **kwargs: log.debug("ray: %s", data.get("lines"))
