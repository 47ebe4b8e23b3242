"""Start a small and quiet Ray on this machine, or use the Ray that this process already has."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

from rtcontrol.hosts.processes import Guardian
from rtcontrol.hosts.ray_environment import keep_sigterm_handler, marked_processes, set_environment, silence_notices
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

HINT = "Use `--host inprocess`, which needs no Ray, or see `rtcontrol doctor`."
POLL_S = 0.05
START_TIMEOUT_S = 300.0
ESSENTIAL = ("gcs_server", "raylet")
# How long a Ray that is still starting may take until it can be shut down.
END_S = 30.0
OBJECT_STORE_BYTES = 80_000_000
LOOPBACK = "127.0.0.1"


class StartCancelled(Exception):
    """Raised when the run is ended while the decoder is being started."""


class RaySession:
    """A small Ray on this machine, started unless this process has one already; and a folder for the sockets.

    A Ray that is started here keeps its files in that folder, which no other user may enter, listens on the loopback
    address alone, and answers only clients with the token, which is in this process and in no file. The guardian ends
    all processes with the folder's mark. Each of the pools that share a session calls `start` and `end`.

    A background thread starts Ray, so that the main thread can be stopped meanwhile and keeps its signal handlers. That
    thread then waits for `end`, since Ray's processes end with the thread that made them."""

    def __init__(self) -> None:
        self.folder = ""
        self._users = 0
        self._guardian: Guardian | None = None
        self._essential: dict[int, str] = {}  # pidfds of the processes that Ray cannot do without
        self._started: futures.Future[None] | None = None
        self._over = threading.Event()

    def start(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Start Ray unless it runs already. Raises UserError, or StartCancelled if `stopped()` is true before Ray runs."""
        self._users += 1
        if self._guardian is not None:
            return
        set_environment()
        try:
            import ray

            self._guardian = Guardian()
        except Exception as error:
            raise _start_error(error) from error
        self.folder = self._guardian.folder
        if ray.is_initialized():
            return
        logging.getLogger("ray").setLevel(logging.ERROR)
        self._started = futures.Future()
        threading.Thread(target=self._run, args=(self._started,), name="ray-start", daemon=True).start()
        while not futures.wait([self._started], POLL_S).done:
            if stopped():
                raise StartCancelled
        if (failure := self._started.exception()) is not None:
            raise _start_error(failure) from failure
        silence_notices()

    def failed_part(self) -> str | None:
        """Return which part of Ray has ended; None while it runs."""
        poll = select.poll()
        for fd in self._essential:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(0):
            return f"Ray's {self._essential[fd]} has ended"
        import ray

        return None if ray.is_initialized() else "Ray was shut down"

    @property
    def essential_files(self) -> list[int]:
        """Files that are readable when a part of Ray has ended."""
        return list(self._essential)

    def end(self) -> None:
        """Shut down the Ray that was started here, even one that is still starting, and leave no process or file."""
        self._users -= 1
        if self._users > 0:
            return
        if self._started is not None:
            import ray

            futures.wait([self._started], END_S)
            with keep_sigterm_handler(), contextlib.suppress(Exception):
                ray.shutdown()
            self._over.set()
        while self._essential:
            os.close(self._essential.popitem()[0])
        if self._guardian is not None:
            self._guardian.end()
            self._guardian = None

    def _run(self, started: futures.Future[None]) -> None:
        try:
            import ray

            # Only the run reacts to a terminal that goes away: Ray's processes live until the run has ended.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            options |= {"num_cpus": 1, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
            # Ray makes its folder readable for all users, so it lies in one that they cannot enter.
            options |= {"_temp_dir": str(Path(self.folder) / "r"), "_node_ip_address": LOOPBACK}
            with keep_sigterm_handler(), marked_processes(self.folder):
                ray.init(address="local", **options)
            processes = ray._private.worker._global_node.all_processes
            self._essential = {os.pidfd_open(processes[name][0].process.pid): name for name in ESSENTIAL}
        except BaseException as error:
            started.set_exception(error)
        else:
            started.set_result(None)
        self._over.wait()


def _start_error(error: BaseException) -> UserError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return UserError(f"Ray cannot start: {reason.rstrip('.')}.", HINT)
