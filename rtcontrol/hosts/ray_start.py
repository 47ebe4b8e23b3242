"""Ray itself: started small and quiet, or joined where it is there; what an actor may take of it, and says."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import secrets
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rtcontrol.hosts.processes import MARK, OPEN, Guardian, kill_marked, marked
from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

REMEDY = "Use `--host inprocess`, which needs no Ray, or see `rtcontrol doctor`."
POLL_S = 0.05
START_TIMEOUT_S = 300.0
VITAL = ("gcs_server", "raylet")
# How long a Ray that is still starting may take until it can be shut down.
END_S = 30.0
OBJECT_STORE_BYTES = 80_000_000
# For Ray's logs and sockets.
ROOM_BYTES = 1_000_000
LOOPBACK = "127.0.0.1"
# Of Ray's own processes.
SETTINGS = {"RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0"}
# No platform's struct sigaction is longer (glibc on x86-64: 152 bytes).
SIGACTION_BYTES = 512


def source_root() -> str | None:
    """Where an uninstalled source tree stands (its workers must find it too), None when installed."""
    root = Path(__file__).resolve().parents[2]
    return str(root) if (root / "pyproject.toml").is_file() else None


def actor_options() -> dict[str, Any]:
    """Of every actor: it is on this machine, Ray starts a lost one again, and it finds this source tree."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options: dict[str, Any] = {"max_restarts": -1, "scheduling_strategy": here}
    if root := source_root():
        path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
        options["runtime_env"] = {"env_vars": {"PYTHONPATH": path}}
    return options


class Stopped(Exception):
    """The run was ended while its decoder was being started."""


def share(gpus: float | None) -> dict[str, float]:
    """What an actor takes of the machine; None: a GPU if there is any. UserError where none is free."""
    import ray

    free = ray.available_resources()
    if gpus is None:
        gpus = 1 if ray.cluster_resources().get("GPU", 0) >= 1 else 0
    if gpus > free.get("GPU", 0):
        raise UserError("Ray has no free GPU.", "End what holds it, or use `--host inprocess`.")
    # Waiting for a CPU that somebody holds for good would hang; sharing one is only slower.
    return {"num_cpus": 1 if free.get("CPU", 0) >= 1 else 0, "num_gpus": gpus}


def ask(asked: Any, stopped: Callable[[], bool]) -> dict[str, Any]:
    """The answer to a call of an actor. Raises UserError for what went wrong in the call, RayError for what went wrong
    with the actor, Stopped when `stopped` says so."""
    import ray

    # In short waits: a long one would not be left when the run is stopped.
    give_up = time.monotonic() + START_TIMEOUT_S
    while not ray.wait([asked], timeout=POLL_S)[0]:
        if stopped():
            raise Stopped
        if time.monotonic() > give_up:
            raise DecoderUnavailable(f"The decider was not built within {START_TIMEOUT_S:g} s.", REMEDY)
    try:
        answer: dict[str, Any] = ray.get(asked)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, UserError):
            raise cause from None
        raise UserError(f"The decider cannot be built: {cause!r}.", "Run with --debug.") from error
    return answer


class RaySession:
    """Ray, started small on this machine, unless this process has one; and a folder for the sockets.

    A Ray that is started here keeps its own files in that folder, which no other user may enter, listens on this
    machine's own address alone, and answers whoever has its token, which is of this process and stands in no file. All
    its processes bear the folder's mark: the guardian, which is there before, removes both when `end` is called or this
    process dies.
    It is started on a thread of its own, so that the main thread can be stopped meanwhile and keeps its signal
    handlers. That thread then waits for `end`: Ray's processes are bound to the life of the thread that made them.
    """

    def __init__(self) -> None:
        self.folder = ""
        self._guardian: Guardian | None = None
        self._vital: dict[int, str] = {}  # pidfds of what Ray cannot do without
        self._tried = threading.Event()
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """UserError when it cannot start, Stopped when `stopped` before it did; does nothing where it runs already."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")
        _guard()
        try:
            import ray
        except Exception as error:
            raise _cannot(error) from error
        try:
            self._guardian = Guardian()
        except OSError as error:
            raise _cannot(error) from error
        self.folder = self._guardian.folder
        if ray.is_initialized():
            return
        _room(self.folder)
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
        """The name of a part of Ray that was started here and has ended by itself."""
        poll = select.poll()
        for fd in self._vital:
            poll.register(fd, select.POLLIN)
        return next((self._vital[fd] for fd, _ in poll.poll(0)), None)

    @property
    def files(self) -> list[int]:
        """Readable when `died` has something to say."""
        return list(self._vital)

    def end(self) -> None:
        """Shut down what was started here, also when it is still starting; nothing is left."""
        if self.died() is not None:
            kill_marked(self.folder)  # what is left of it would only keep the shutdown waiting
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
            options |= {"_temp_dir": str(Path(self.folder) / OPEN), "_node_ip_address": LOOPBACK}
            with _sigterm_kept(), _marking(self.folder):
                ray.init(address="local", **options)
            for _, fd, program in marked(self.folder):
                if program in VITAL:
                    self._vital[fd] = program
                else:
                    os.close(fd)
        except BaseException as error:  # told to whoever waits, on the thread that waits
            self._error = error
        finally:
            self._tried.set()
        self._over.wait()


@contextlib.contextmanager
def _marking(folder: str) -> Iterator[None]:
    """What Ray starts meanwhile bears the mark of the folder, and nothing that others start in this process does. Ray's
    workers rename themselves: not over it. Nor do they make way for all other processes, as they would by themselves
    (nice 15). No worker is started before one is asked for: the first driver would wait for it, with the interpreter's
    lock in its hand, and a run that flies on while Ray is started again stood still for half a second and more. Nor
    does Ray take the machine's outer address for its own: then all of it would listen on every address."""
    from ray._private import services

    theirs, outer = services.start_ray_process, services.resolve_ip_for_localhost

    def start(*args: Any, env_updates: Mapping[str, str] | None = None, **options: Any) -> Any:
        marks = {MARK: folder, "SPT_NOENV": "1", **SETTINGS}
        return theirs(*args, env_updates={**(env_updates or {}), **marks}, **options)

    services.start_ray_process = start
    services.resolve_ip_for_localhost = lambda host: host
    try:
        yield
    finally:
        services.start_ray_process, services.resolve_ip_for_localhost = theirs, outer


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
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].partition("  Last 0 lines of error files")[
        0
    ]
    return UserError(f"Ray cannot start: {reason.rstrip('.')}.", REMEDY)


def _guard() -> None:
    """A token for the Ray that is started here, unless the user has one: Ray would write its own into HOME, where there
    is one, for everybody to read."""
    if not any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    if "ray" not in sys.modules:  # one that is loaded knows its mode already
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _room(folder: str) -> None:
    """UserError where Ray could not keep its files: it would try for half a minute, and name no reason."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
            file.truncate(OBJECT_STORE_BYTES)  # takes no room
    except OSError as error:
        what, remedy = f"{Path(folder).parent} has no room for Ray's files", "Make room there, or set TMPDIR elsewhere"
        if error.errno == errno.EFBIG:
            what = f"a file may not get {OBJECT_STORE_BYTES // 1_000_000} MB large, as Ray's do"
            remedy = "Raise the limit (`ulimit -f unlimited`)"
        raise UserError(
            f"Ray cannot start: {what} ({error.strerror}).", f"{remedy}, or use `--host inprocess`, which needs no Ray."
        ) from None


def _hush() -> None:
    # A worker's death is our business and no surprise: Ray's own notice of it would be printed over the live view,
    # whatever log_to_driver says.
    with contextlib.suppress(ImportError, AttributeError):
        from ray._private import worker

        worker.print_to_stdstream = lambda data, *args, **kwargs: log.debug("ray: %s", data.get("lines"))
