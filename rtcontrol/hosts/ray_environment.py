"""Prevent Ray from changing the process that starts it: its environment, output, signal handlers, network address."""

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
# Size of the buffer for C's struct sigaction, which has 152 bytes in glibc on x86-64, and nowhere more than 512.
SIGACTION_BYTES = 512


def set_environment() -> None:
    """Set environment variables for Ray, unless the user has set them: no messages, and no automatic start.

    Sets a random authentication token, because Ray would write a token into HOME, readable for all users. Workers get
    normal priority (Ray's default is a nice value of 15). Ray starts no worker in advance, because it would hold the
    interpreter's lock while waiting for the worker."""
    defaults = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ENABLE_AUTO_CONNECT": "0"}
    defaults |= {"RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0"}
    defaults["SPT_NOENV"] = "1"  # when workers change their process titles, this keeps their environment
    if "ray" not in sys.modules:  # Ray reads RAY_AUTH_MODE when it is imported
        defaults["RAY_AUTH_MODE"] = "token"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if not (os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def silence_notices() -> None:
    """Log Ray's messages about ended workers instead of printing them over the live view."""
    with contextlib.suppress(ImportError, AttributeError):
        from ray._private import worker

        worker.print_to_stdstream = lambda data, *args, **kwargs: log.debug("ray: %s", data.get("lines"))


@contextlib.contextmanager
def marked_processes(folder: str) -> Iterator[None]:
    """Mark all processes that Ray starts in this context, and let them listen on loopback addresses only. The mark (the
    folder in the variable MARK) lets the Guardian kill them."""
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
    """Restore the handler of SIGTERM at the end of the context. Works on any thread, unlike `signal.signal`.

    Ray's C++ core installs a handler that prints the stack, and aborts the process 3 s later."""
    action, libc = ctypes.create_string_buffer(SIGACTION_BYTES), ctypes.CDLL(None)
    libc.sigaction(int(signal.SIGTERM), None, action)
    try:
        yield
    finally:
        libc.sigaction(int(signal.SIGTERM), action, None)
