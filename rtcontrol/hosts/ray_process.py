"""The decoder's process as an actor of Ray: started, replaced where it is lost, watched by its heart."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq

from rtcontrol.hosts.decoder_link import PING, WakeFile, dealer
from rtcontrol.hosts.protocol import DeciderSource, DecisionRequest, DecoderUnavailable
from rtcontrol.hosts.ray_actor import BUILD, DecoderActor
from rtcontrol.hosts.ray_start import POLL_S, REMEDY, RaySession, Stopped
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

START_TIMEOUT_S = 300.0
PING_EVERY_S = 0.1
# A process that was silent in so many rounds is lost; fewer may be those of a live one on a starved machine.
SILENT_ROUNDS = 100


class DecoderProcess:
    """One `DecoderActor` of a Ray that may be shared."""

    def __init__(self, ray: RaySession, gpus: float | None, arguments: Sequence[Any]) -> None:
        """`gpus` None: one if Ray has any."""
        self.actor: Any = None
        self.ray = ray
        self._gpus, self._arguments = gpus, arguments
        self._options: dict[str, Any] = {}
        self._uses_ray = False

    def start(self, stopped: Callable[[], bool]) -> dict[str, Any]:
        """Start Ray and the actor; gives what the actor's `start` answers. Raises UserError, and Stopped when `stopped`
        says so before it runs."""
        self._uses_ray = True
        self.ray.start(stopped)
        import ray

        try:
            self._options = _options(self._gpus)
            return self._launch(stopped)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise DecoderUnavailable(f"Ray cannot run the decoder's process: {reason}.", REMEDY) from error

    def replace(self, closed: Callable[[], bool]) -> dict[str, Any] | None:
        """Kill a lost actor, and start another; None when the pool is closed. Raises DecoderUnavailable when that takes
        too long, and when Ray itself is lost."""
        import ray

        self._kill()
        give_up = time.monotonic() + START_TIMEOUT_S
        while not closed():
            if (died := self.ray.died()) is not None:
                raise DecoderUnavailable(f"{died}.", "Start again.")
            try:
                return self._launch(lambda: closed() or self.ray.died() is not None)
            except Stopped:
                continue
            except (ray.exceptions.RayError, UserError) as error:
                if time.monotonic() > give_up:
                    what = f"The decoder's process did not come back within {START_TIMEOUT_S:g} s."
                    raise DecoderUnavailable(what, REMEDY) from error
                log.error("the decoder fails to start again: %s", error)
                self._kill()
                time.sleep(POLL_S)
        return None

    def _launch(self, stopped: Callable[[], bool]) -> dict[str, Any]:
        import ray

        self.actor = ray.remote(**self._options)(DecoderActor).remote(*self._arguments, self.ray.folder)
        starting = self.actor.start.remote()
        # In short waits: a long one would not be left when the run is stopped.
        give_up = time.monotonic() + START_TIMEOUT_S
        while not ray.wait([starting], timeout=POLL_S)[0]:
            if stopped():
                raise Stopped
            if time.monotonic() > give_up:
                raise DecoderUnavailable(f"The decoder did not start within {START_TIMEOUT_S:g} s.", REMEDY)
        life: dict[str, Any] = self.result(starting)
        return life

    def build(self, key: bytes, source: DeciderSource, last: DecisionRequest | None) -> Any:
        """Begin to build a session's decider, warm by its `last` request; gives its `result` to come. Raises
        UserError."""
        build = self.actor.open.options(concurrency_group=BUILD)
        try:
            return build.remote(key, source, last)
        except TypeError as error:
            raise UserError(f"The decider's source cannot be sent ({error}).", "Make it picklable.") from error

    def result(self, pending: Any) -> Any:
        """Return the answer to a call of the actor, None while there is none. Raises UserError for what went wrong in
        the call, RayError for what went wrong with the actor."""
        import ray

        if not ray.wait([pending], timeout=0)[0]:
            return None
        try:
            return ray.get(pending)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from None
            raise UserError(f"The decider cannot be built: {error.cause!r}.", "Run with --debug.") from error

    def free(self, key: bytes) -> None:
        """Free a session's decider, after what was to be built before."""
        self.actor.close.options(concurrency_group=BUILD).remote(key)

    def end(self) -> None:
        """Kill the actor, and end the Ray that was started here."""
        if self._uses_ray:
            self._uses_ray = False
            if self.ray.died() is None:
                self._kill()
            self.ray.end()

    def _kill(self) -> None:
        if self.actor is not None:
            import ray

            with contextlib.suppress(Exception):  # it is gone already, or Ray is
                ray.kill(self.actor)
        self.actor = None


def _options(gpus: float | None) -> dict[str, Any]:
    """Of an actor: it is on this machine, finds an uninstalled source tree, and shares whatever processors there are.
    UserError where there is no GPU for it."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if gpus is None:
        gpus = 1 if ray.cluster_resources().get("GPU", 0) >= 1 else 0
    if gpus > ray.available_resources().get("GPU", 0):
        raise UserError("Ray has no free GPU.", "End what holds it, or use `--host inprocess`.")
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    root = Path(__file__).resolve().parents[2]
    paths = [str(root)] if (root / "pyproject.toml").is_file() else []
    path = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"env_vars": {"PYTHONPATH": path}}
    return {
        "num_cpus": 0,
        "num_gpus": gpus,
        "scheduling_strategy": here,
        "runtime_env": env,
        "concurrency_groups": {BUILD: 1},
    }


class Heart:
    """Watches one life of the decoder's process: its socket, its answers to pings, and what Ray cannot do without."""

    def __init__(self, life: Mapping[str, Any], vital: Sequence[int], wake: WakeFile) -> None:
        self._socket = dealer(life["heartbeat"], life["key"])
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._poller = zmq.Poller()
        for watched in (self._socket, self._monitor, wake.fd, *vital):
            self._poller.register(watched, zmq.POLLIN)
        self._wake = wake
        self._next = 0.0
        self._silent = 0  # rounds that the watcher saw itself: while it is not run, no one is silent

    def lost(self, timeout_s: float) -> bool:
        """Wait until something happens, at most so long; return whether the process is lost, or a part of Ray."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + PING_EVERY_S
            self._silent += 1
            with contextlib.suppress(zmq.Again):
                self._socket.send(PING, zmq.NOBLOCK)
        ready = dict(self._poller.poll(max(1, int(1e3 * timeout_s))))
        if ready.pop(self._wake.fd, 0):
            self._wake.clear()
        if ready.pop(self._socket, 0):
            self._socket.recv()
            self._silent = 0
        return bool(ready) or self._silent > SILENT_ROUNDS

    def close(self) -> None:
        self._socket.disable_monitor()
        self._socket.close(0)
