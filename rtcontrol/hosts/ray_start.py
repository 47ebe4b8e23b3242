"""Start a private Ray on this machine, or use the Ray that this process has already started."""

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

from rtcontrol.hosts.processes import Guardian, system_restrictions
from rtcontrol.hosts.ray_environment import keep_sigterm_handler, marked_processes, set_environment, silence_notices
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

HINT = "Use `--host inprocess`, which needs no Ray, or see `rtcontrol doctor`."
POLL_S = 0.05
START_TIMEOUT_S = 300.0
ESSENTIAL = ("gcs_server", "raylet")
# Seconds to wait for a Ray that is still starting, before it is shut down.
END_S = 30.0
OBJECT_STORE_BYTES = 80_000_000
LOOPBACK = "127.0.0.1"
RAY_TASKS = 400  # approximate number of processes and threads that Ray with one actor needs


class StartCancelled(Exception):
    """The exception that the run was stopped while Ray or the decoder was being started."""


class RaySession:
    """A private Ray on this machine (unless this process has a Ray already), and a private folder for sockets.

    Ray keeps its files in the folder, listens on the loopback address only, and accepts only clients with a token that
    is in no file. A Guardian kills all processes of this Ray at the end. Several pools may share a session; each of
    them calls `start` and `end`.

    A background thread starts Ray, because the main thread must stay interruptible and keep its signal handlers. The
    background thread runs until `end`, because Ray's processes end with the thread that started them."""

    def __init__(self) -> None:
        self.folder = ""
        self._users = 0
        self._guardian: Guardian | None = None
        self._essential: dict[int, str] = {}  # by pidfd: name of each essential Ray process
        self._started: futures.Future[None] | None = None
        self._session_ended = threading.Event()

    def start(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Start Ray unless it is running. Raises UserError, or StartCancelled if `stopped()` becomes true first."""
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
        threading.Thread(target=self._run_ray, args=(self._started,), name="ray-start", daemon=True).start()
        while not futures.wait([self._started], POLL_S).done:
            if stopped():
                raise StartCancelled
        if (failure := self._started.exception()) is not None:
            raise _start_error(failure) from failure
        silence_notices()

    def failed_part(self) -> str | None:
        """Return a text that names the part of Ray that has ended, or None if Ray is running."""
        poll = select.poll()
        for fd in self._essential:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(0):
            return f"Ray's {self._essential[fd]} has ended"
        import ray

        return None if ray.is_initialized() else "Ray was shut down"

    @property
    def essential_files(self) -> list[int]:
        """Return pidfds of Ray's essential processes. A pidfd becomes readable when its process ends."""
        return list(self._essential)

    def end(self) -> None:
        """Shut down Ray if this session started it, even during its start. Kill its processes, and remove its files."""
        self._users -= 1
        if self._users > 0:
            return
        if self._started is not None:
            import ray

            futures.wait([self._started], END_S)
            with keep_sigterm_handler(), contextlib.suppress(Exception):
                ray.shutdown()
            self._session_ended.set()
        while self._essential:
            os.close(self._essential.popitem()[0])
        if self._guardian is not None:
            self._guardian.end()
            self._guardian = None

    def _run_ray(self, started: futures.Future[None]) -> None:
        try:
            import ray

            # Ray's processes inherit this block of SIGHUP, so they survive a closed terminal until the run has ended.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            options |= {"job_config": _job_config()}
            options |= {"num_cpus": 1, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
            # All users can read Ray's folder, so put it into the run's private folder.
            options |= {"_temp_dir": str(Path(self.folder) / "r"), "_node_ip_address": LOOPBACK}
            with keep_sigterm_handler(), marked_processes(self.folder):
                ray.init(address="local", **options)
            processes = ray._private.worker._global_node.all_processes
            self._essential = {os.pidfd_open(processes[name][0].process.pid): name for name in ESSENTIAL}
        except BaseException as error:
            started.set_exception(error)
        else:
            started.set_result(None)
        self._session_ended.wait()


def _job_config() -> Any:
    """Return a job configuration that keeps the working directory and the script's folder out of the workers' module
    search path. Otherwise a user's file zmq.py in these folders would be imported in place of the package."""
    from ray.job_config import JobConfig

    class WithoutFolders(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True  # this makes Ray add neither folder

    return WithoutFolders()


def _start_error(error: BaseException) -> UserError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    for text in system_restrictions(RAY_TASKS):
        return UserError(f"Ray cannot start: {text}. Ray says: {reason.rstrip('.')}.", HINT)
    return UserError(f"Ray cannot start: {reason.rstrip('.')}.", HINT)
