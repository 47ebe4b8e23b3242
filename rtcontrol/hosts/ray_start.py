"""Ray itself: started small and quiet, or joined where it is there."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import secrets
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rtcontrol.hosts.processes import MARK, Guardian
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

REMEDY = "Use `--host inprocess`, which needs no Ray, or see `rtcontrol doctor`."
POLL_S = 0.05
VITAL = ("gcs_server", "raylet")
# How long a Ray that is still starting may take until it can be shut down.
END_S = 30.0
OBJECT_STORE_BYTES = 80_000_000
LOOPBACK = "127.0.0.1"
# No platform's struct sigaction is longer (glibc on x86-64: 152 bytes).
SIGACTION_BYTES = 512


class Stopped(Exception):
    """The run was ended while its decoder was being started."""


class RaySession:
    """Ray, started small on this machine, unless this process has one; and a folder for the sockets.

    A Ray that is started here keeps its own files in that folder, which no other user may enter, listens on this
    machine's own address alone, and answers whoever has its token, which is of this process and stands in no file. All
    its processes bear the folder's mark, by which the guardian ends them. Pools that share it start it, and end it,
    each.
    It is started on a thread of its own, so that the main thread can be stopped meanwhile and keeps its signal
    handlers. That thread then waits for `end`: Ray's processes are bound to the life of the thread that made them.
    """

    def __init__(self) -> None:
        self.folder = ""
        self._users = 0
        self._guardian: Guardian | None = None
        self._vital: dict[int, str] = {}  # pidfds of what Ray cannot do without
        self._tried = threading.Event()
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """UserError when it cannot start, Stopped when `stopped` before it did; does nothing where it runs already."""
        self._users += 1
        if self._guardian is not None:
            return
        _set_environment()
        try:
            import ray

            self._guardian = Guardian()
        except Exception as error:
            raise _cannot(error) from error
        self.folder = self._guardian.folder
        if ray.is_initialized():
            return
        logging.getLogger("ray").setLevel(logging.ERROR)
        self._thread = threading.Thread(target=self._run, name="ray-start", daemon=True)
        self._thread.start()
        while not self._tried.wait(POLL_S):
            if stopped():
                raise Stopped
        if self._error is not None:
            raise _cannot(self._error) from self._error
        _hush()

    def died(self) -> str | None:
        """Which part of Ray has ended by itself, or by whoever had started it."""
        poll = select.poll()
        for fd in self._vital:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(0):
            return f"Ray's {self._vital[fd]} has ended"
        import ray

        return None if ray.is_initialized() else "Ray was shut down"

    @property
    def vital(self) -> list[int]:
        """Files that are readable when a part of Ray has ended."""
        return list(self._vital)

    def end(self) -> None:
        """Shut down what was started here, also when it is still starting; nothing is left."""
        self._users -= 1
        if self._users > 0:
            return
        if self._thread is not None:
            import ray

            self._tried.wait(END_S)
            with _sigterm_kept(), contextlib.suppress(Exception):
                ray.shutdown()
            self._over.set()
        while self._vital:
            os.close(self._vital.popitem()[0])
        if self._guardian is not None:
            self._guardian.end()
            self._guardian = None

    def _run(self) -> None:
        try:
            import ray

            # A terminal that goes away is the run's business: Ray's processes live until it has ended.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            options |= {"num_cpus": 1, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
            # It opens its folder to everybody.
            options |= {"_temp_dir": str(Path(self.folder) / "r"), "_node_ip_address": LOOPBACK}
            with _sigterm_kept(), _apart(self.folder):
                ray.init(address="local", **options)
            processes = ray._private.worker._global_node.all_processes
            self._vital = {os.pidfd_open(processes[name][0].process.pid): name for name in VITAL}
        except BaseException as error:  # raised where it is waited for
            self._error = error
        finally:
            self._tried.set()
        self._over.wait()


@contextlib.contextmanager
def _apart(folder: str) -> Iterator[None]:
    """What Ray starts meanwhile bears the mark of the folder, and Ray does not take the machine's outer address for its
    own: then all of it would listen on every address."""
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
def _sigterm_kept() -> Iterator[None]:
    """Ray's C++ core takes SIGTERM for a crash: it prints the stack, and aborts the process 3 s later, also in the
    middle of an orderly end. When it is shut down, SIGTERM would end the process at once. The handler that was there is
    put back; `signal.signal` could do it on the main thread only."""
    action = ctypes.create_string_buffer(SIGACTION_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    kept = libc.sigaction(int(signal.SIGTERM), None, action) == 0
    try:
        yield
    finally:
        if kept:
            libc.sigaction(int(signal.SIGTERM), action, None)


def _cannot(error: BaseException) -> UserError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return UserError(f"Ray cannot start: {reason.rstrip('.')}.", REMEDY)


def _set_environment() -> None:
    """Keep Ray quiet, and never start it by the way. A token for the Ray that is started here, unless the user has one:
    Ray would write its own into HOME, where there is one, for everybody to read. Its workers do not make way for all
    other processes, as they would by themselves (nice 15). No worker is started before it is needed: the first driver
    would wait for it, with the interpreter's lock in its hand."""
    defaults = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ENABLE_AUTO_CONNECT": "0"}
    defaults |= {"RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0"}
    defaults["SPT_NOENV"] = "1"  # workers rename themselves: not over their environment
    if "ray" not in sys.modules:  # one that is loaded knows its mode already
        defaults["RAY_AUTH_MODE"] = "token"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if not (os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _hush() -> None:
    # A worker's death is our business and no surprise: Ray's own notice of it would be printed over the live view,
    # whatever log_to_driver says.
    with contextlib.suppress(ImportError, AttributeError):
        from ray._private import worker

        worker.print_to_stdstream = lambda data, *args, **kwargs: log.debug("ray: %s", data.get("lines"))
