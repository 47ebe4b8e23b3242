"""Start the decoder's process as a Ray actor, call it, and replace it if it is lost."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rtcontrol.hosts.protocol import DeciderSource, DecisionRequest, DecoderUnavailable
from rtcontrol.hosts.ray_actor import BUILD, PING, DecoderActor
from rtcontrol.hosts.ray_start import HINT, POLL_S, START_TIMEOUT_S, RaySession, StartCancelled
from rtcontrol.models.errors import UserError
from rtcontrol.models.processors import usable_processors

# Prefixes of environment variables that configure threads and memory of a process.
TUNING = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_", "TORCH", "PYTORCH_", "LD_PRELOAD")

log = logging.getLogger("rtcontrol.host")


class DecoderProcess:
    """The decoder's process: a `DecoderActor` that is created with `arguments`. Several processes may share `ray`.
    `gpus`: the number of GPUs (None: one GPU if Ray has any)."""

    def __init__(self, ray: RaySession, gpus: float | None, arguments: Sequence[Any]) -> None:
        self.actor: Any = None
        self.ray = ray
        self._gpus, self._arguments = gpus, arguments
        self._actor_options: dict[str, Any] = {}
        self._uses_ray = False

    def start(self, stopped: Callable[[], bool]) -> dict[str, Any]:
        """Start Ray and the actor. Return what the actor's `start` returns. Raises UserError or StartCancelled."""
        self._uses_ray = True
        self.ray.start(stopped)
        import ray

        try:
            self._actor_options = _actor_options(self._gpus)
            return self._launch_actor(stopped)
        except ray.exceptions.RayError as error:
            raise DecoderUnavailable(f"Ray cannot run the decoder's process: {error}", HINT) from error

    def replace(self, closed: Callable[[], bool]) -> dict[str, Any] | None:
        """Kill the lost actor and start a new one. Return what its `start` returns, or None if the pool is closed.

        Raises DecoderUnavailable if this takes too long, or if Ray itself is lost."""
        import ray

        give_up_s = time.monotonic() + START_TIMEOUT_S
        while not closed():
            self._kill_actor()
            if (failed := self.ray.failed_part()) is not None:
                raise DecoderUnavailable(f"{failed}.", "Start again.")
            try:
                return self._launch_actor(lambda: closed() or self.ray.failed_part() is not None)
            except StartCancelled:
                continue
            except (ray.exceptions.RayError, UserError) as error:
                log.error("the decoder process could not be started again: %s", error)
                if time.monotonic() > give_up_s:
                    raise DecoderUnavailable("The decoder's process could not be restarted.", HINT) from error
                time.sleep(POLL_S)
        return None

    def _launch_actor(self, stopped: Callable[[], bool]) -> dict[str, Any]:
        import ray

        self.actor = ray.remote(**self._actor_options)(DecoderActor).remote(*self._arguments, self.ray.folder)
        starting = self.actor.start.remote()
        give_up_s = time.monotonic() + START_TIMEOUT_S
        while not ray.wait([starting], timeout=POLL_S)[0]:
            if stopped():
                raise StartCancelled
            if time.monotonic() > give_up_s:
                raise DecoderUnavailable(f"The decoder did not start within {START_TIMEOUT_S:g} s.", HINT)
        process_info: dict[str, Any] = self.result(starting)
        return process_info

    def build(self, key: bytes, source: DeciderSource, last: DecisionRequest | None) -> Any:
        """Start building a session's decider and warming it up with the `last` request. Return the call for `result`.

        Raises UserError if the source cannot be pickled."""
        try:
            return self.actor.build.options(concurrency_group=BUILD).remote(key, source, last)
        except TypeError as error:
            raise UserError(f"The decider's source cannot be pickled ({error}).", "Make it picklable.") from error

    def result(self, call: Any) -> Any:
        """Return the result of a call of the actor, or None if the call has not finished.

        Raises UserError if the call failed, and RayError if the actor is lost."""
        import ray

        if not ray.wait([call], timeout=0)[0]:
            return None
        try:
            return ray.get(call)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from None
            raise UserError(f"The decider cannot be built: {error.cause!r}.", "Run with --debug.") from error

    def free(self, key: bytes) -> None:
        """Start freeing a session's decider. The actor first finishes all earlier builds."""
        if (actor := self.actor) is not None:
            actor.free.options(concurrency_group=BUILD).remote(key)

    def ping(self) -> Any:
        """Send a ping to the process, and return the call for `result`."""
        return self.actor.ping.options(concurrency_group=PING).remote()

    def end(self) -> None:
        """Kill the actor, and shut down Ray if this process started it."""
        if self._uses_ray:
            self._uses_ray = False
            if self.ray.failed_part() is None:
                self._kill_actor()
            self.ray.end()

    def _kill_actor(self) -> None:
        if self.actor is not None:
            import ray

            with contextlib.suppress(Exception):  # fails if the actor or Ray has already ended
                ray.kill(self.actor)
        self.actor = None


def _tuning_variables(shell: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of `shell` that tune threads and memory, for a Ray that was started elsewhere.
    OMP_NUM_THREADS is always set, because Ray's default of 1 would run a large model on a single processor."""
    variables = {name: value for name, value in shell.items() if name.startswith(TUNING)}
    return {"OMP_NUM_THREADS": str(usable_processors()), **variables}


def _actor_options(gpus: float | None) -> dict[str, Any]:
    """Return the options of the actor: on this machine, without a CPU limit, with the source tree in PYTHONPATH.

    Raises UserError if there is no free GPU."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if gpus is None:
        gpus = 1 if ray.cluster_resources().get("GPU", 0) >= 1 else 0
    if gpus > ray.available_resources().get("GPU", 0):
        raise UserError("Ray has no free GPU.", "End the program that uses the GPU, or use `--host inprocess`.")
    root = Path(__file__).resolve().parents[2]
    paths = [str(root)] if (root / "pyproject.toml").is_file() else []
    path = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        "num_cpus": 0,
        "num_gpus": gpus,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False),
        "runtime_env": {"env_vars": {**_tuning_variables(os.environ), "PYTHONPATH": path}},
        "concurrency_groups": {BUILD: 1, PING: 1},
    }
