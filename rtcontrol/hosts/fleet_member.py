"""The parts of a fleet of decoders: the one Ray that all live in, and each decoder."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol

from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.hosts.ray_host import RayHost
from rtcontrol.hosts.ray_pool import RAY_TRIES, STEADY_S
from rtcontrol.hosts.ray_standby import JoinedRay, SparePool
from rtcontrol.hosts.ray_start import POLL_S, REMEDY, RaySession
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

State = Literal["starting", "up", "draining", "ended"]
# So long Ray is waited for to start a lost process again where it was promised a processor; then it does without.
BACK_S = 30.0
# So often a decoder is tried again that found no free GPU.
AGAIN_S = 1.0
SILENT = "says nothing: its sessions go elsewhere, where there is room"


class FleetRay:
    """Ray, started here for up to so many decoders, or joined. One that was started here and died is started again, at
    most `RAY_TRIES` times until it has lasted a while; `before` is called first: nobody may use Ray any more then."""

    def __init__(self, cpus: int, before: Callable[[], None], failed: Callable[[str], None]) -> None:
        self.gave_up: str | None = None
        self._cpus, self._before, self._failed = cpus, before, failed
        self.ray = RaySession(cpus)
        self._there = False
        self._closed = threading.Event()
        self._watcher: threading.Thread | None = None

    def start(self, stopped: Callable[[], bool]) -> None:
        """Raises UserError, and Stopped."""
        self.ray.start(stopped)
        self._there = True
        if self.ray.files:  # of a cluster that others keep, nothing can be seen, and nothing be started again
            self._watcher = threading.Thread(target=self._watch, name="fleet-ray", daemon=True)
            self._watcher.start()

    @property
    def joined(self) -> bool:
        """Whether others keep it, on however many machines."""
        return self._there and not self.ray.files

    @property
    def up(self) -> bool:
        """Whether it is there, and has not died."""
        return self._there and JoinedRay(self).died() is None

    def close(self) -> None:
        """End it, where it was started here; nobody uses it any more."""
        self._closed.set()
        if self._watcher is not None:
            self._watcher.join()
        self._there = False
        self.ray.end()

    def _watch(self) -> None:
        tries, began = 0, time.monotonic()
        while not self._closed.wait(POLL_S):
            if (died := self.ray.died()) is None:
                continue
            self._there = False
            tries = 0 if time.monotonic() - began > STEADY_S else tries
            if tries == RAY_TRIES:
                self.gave_up = f"Ray was lost, and {RAY_TRIES} times started again in vain."
                self._failed(self.gave_up)
                return
            tries, began = tries + 1, time.monotonic()
            log.warning("Ray's %s has ended: Ray is started again", died)
            self._before()
            self.ray.end()
            self.ray = RaySession(self._cpus)
            try:
                self.ray.start(self._closed.is_set)
                self._there = True
            except UserError as error:
                log.error("Ray does not start again: %s", error)
                self._closed.wait(AGAIN_S)
            except Exception:  # Stopped
                return


class FleetOwner(Protocol):
    """What a decoder tells its fleet."""

    def lost(self, member: FleetMember) -> None:
        """Its process is gone; its sessions may go elsewhere."""


class FleetMember(SparePool):
    """A decoder of a fleet: an actor in the fleet's Ray, which Ray spreads over its machines. `model`: the number of
    the model that its fleet served when it was made."""

    back_s = BACK_S

    def __init__(
        self, name: str, fleet: FleetOwner, ray: FleetRay, limit: int, share: Callable[[], dict[str, Any]], model: int
    ) -> None:
        super().__init__(ray, limit)
        self.decoder, self.model = name, model
        self.state: State = "starting"
        self.silent = False  # its process, or the way there: who is on it had better go elsewhere
        self.residents: dict[str, RayHost] = {}  # models that are kept loaded
        # Of each decoder its own: one that hangs holds up nobody who goes to another.
        self.builder = ThreadPoolExecutor(1, f"{name}-builds")
        self._fleet, self._taken = fleet, share

    @property
    def takes(self) -> bool:
        """Whether sessions may come."""
        return self.state == "up" and self.alive() and not self.silent

    @property
    def process(self) -> dict[str, Any]:
        """Its pid and the machine that it is on; empty while it is away."""
        answer = self._answer or {}
        return {key: answer[key] for key in ("pid", "node") if key in answer}

    def _share(self) -> dict[str, Any]:
        try:
            return {**self._taken(), "scheduling_strategy": "SPREAD"}
        except UserError as error:
            if not self._began:
                raise
            self._closed.wait(AGAIN_S)
            raise DecoderUnavailable(error.what, error.remedy) from error  # it may be free later

    def close(self) -> None:
        self.state = "ended"
        self.builder.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _is_dead(self, error: Exception) -> bool:
        import ray

        return isinstance(error, ray.exceptions.ActorDiedError)  # somebody ended it for good

    def _doubt(self, silent: bool) -> None:
        self.silent = silent
        log.warning("%s %s", self.decoder, SILENT if silent else "is not silent any more")

    def _lose(self, lost_ns: int) -> None:
        super()._lose(lost_ns)
        with contextlib.suppress(RuntimeError):  # the fleet is being closed
            self._fleet.lost(self)


def fleet_share(decoders: int, processors: int) -> dict[str, Any]:
    """What one of so many decoders takes: a GPU where there is one for each, else its part of them; and so many
    processors. Where Ray has not as many free it takes none: it would wait for them, and sharing them is only slower.
    UserError where no GPU is free."""
    import ray

    free, there = ray.available_resources(), ray.cluster_resources()
    gpus = there.get("GPU", 0.0)
    each = 0.0 if gpus <= 0 else 1.0 if gpus >= decoders else round(gpus / decoders, 4)
    if each > free.get("GPU", 0.0):
        raise UserError(
            f"Ray has no free GPU for a further decoder: each takes {each:g}, of {gpus:g} in all.",
            f"Give fewer --decoders, or end what holds the GPUs. {REMEDY}",
        )
    return {"num_cpus": processors if free.get("CPU", 0.0) >= processors else 0, "num_gpus": each}
