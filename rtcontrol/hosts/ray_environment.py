"""Keep Ray from changing the process that starts it: environment, output, signal handlers, network address."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import secrets
import signal
import sys
from collections.abc import Iterator

from rtcontrol.hosts.processes import MARK

log = logging.getLogger("rtcontrol.host")
# No platform's struct sigaction is longer (glibc on x86-64: 152 bytes).
SIGACTION_BYTES = 512


def set_environment() -> None:
    """Set the environment that keeps Ray quiet, and from starting except on purpose.

    A new token is set unless the user has one: Ray would write a token into HOME, readable for all users. Workers
    are not nicer than other processes (Ray's default is 15). No worker is started early, since the first driver would
    hold the interpreter's lock while waiting for that worker."""
    defaults = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ENABLE_AUTO_CONNECT": "0"}
    defaults |= {"RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0"}
    defaults["SPT_NOENV"] = "1"  # workers rename themselves, which must not overwrite their environment
    if "ray" not in sys.modules:  # once loaded, Ray has chosen its mode
        defaults["RAY_AUTH_MODE"] = "token"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if not (os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def silence_notices() -> None:
    # Ray would print a notice of a worker's death over the live view, whatever log_to_driver says.
    with contextlib.suppress(ImportError, AttributeError):
        from ray._private import worker

        worker.print_to_stdstream = lambda data, *args, **kwargs: log.debug("ray: %s", data.get("lines"))


@contextlib.contextmanager
def marked_processes(folder: str) -> Iterator[None]:
    """Mark the processes that Ray starts by the folder, and keep Ray from listening on the machine's outer address."""
    from ray._private import services

    outer = services.resolve_ip_for_localhost
    services.resolve_ip_for_localhost = lambda host: host
    os.environ[MARK] = folder
    try:
        yield
    finally:
        del os.environ[MARK]
        services.resolve_ip_for_localhost = outer


@contextlib.contextmanager
def keep_sigterm_handler() -> Iterator[None]:
    """Restore the handler of SIGTERM afterwards, on any thread (`signal.signal` works on the main thread only).

    Ray's C++ core treats SIGTERM as a crash: it prints the stack, and aborts the process 3 s later."""
    action, libc = ctypes.create_string_buffer(SIGACTION_BYTES), ctypes.CDLL(None)
    libc.sigaction(int(signal.SIGTERM), None, action)
    try:
        yield
    finally:
        libc.sigaction(int(signal.SIGTERM), action, None)
