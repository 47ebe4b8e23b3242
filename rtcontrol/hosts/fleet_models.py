"""What a fleet's decoders serve in the place of a model, and which models are kept loaded in all of them."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rtcontrol.hosts.deciders import FREE_VALUE, ModelSource, STSource
from rtcontrol.hosts.fleet_member import FleetMember
from rtcontrol.hosts.protocol import DeciderSource
from rtcontrol.hosts.ray_host import RayHost

log = logging.getLogger("rtcontrol.host")


class FleetModels:
    """`members` are the decoders. Each has the number of the models that it serves; `model` is the one in force."""

    def __init__(self) -> None:
        self.members: list[FleetMember] = []
        self.closed = threading.Event()
        self.model = 0  # it grows with each change
        self._served: dict[int, dict[str, str]] = {0: {}}  # by this number: what is served in the place of a model
        self._residents: dict[str, DeciderSource] = {}

    def keep_loaded(self, source: DeciderSource) -> None:
        """Load what the source builds in all decoders, those of later too. Raises UserError."""
        key = prefix_of(source)
        self._residents[key] = source
        for member in list(self.members):
            self._reside(member, key, source, self.closed.is_set)

    def models(self, number: int) -> dict[str, str]:
        """What is served in the place of a model, by the decoders of this number."""
        return self._served[number]

    def served_as(self, models: dict[str, str]) -> int:
        """The number of decoders that serve these."""
        number = max(self._served) + 1
        self._served[number] = models
        return number

    def translated(self, source: DeciderSource, member: FleetMember) -> DeciderSource:
        """The same by the model that the decoder serves in the place of the source's."""
        spec: Any = getattr(source, "spec", None)
        name = self._served[member.model].get(getattr(spec, "model", ""))
        return source if name is None else replace(source, spec=replace(spec, model=name))  # type: ignore[type-var]

    def keep(self, source: DeciderSource) -> None:
        """Load the model of a session in the other decoders, too, so that it finds it there when its own is lost."""
        if not isinstance(source, STSource):
            return
        resident = ModelSource(replace(source.spec, tools=(FREE_VALUE,)))
        if (key := prefix_of(resident)) in self._residents:
            return
        self._residents[key] = resident
        for member in list(self.members):
            try:
                member.builder.submit(self._try_reside, member, key, resident)
            except RuntimeError:
                continue

    def _try_reside(self, member: FleetMember, key: str, source: DeciderSource) -> None:
        try:
            self._reside(member, key, source, self.closed.is_set)
        except Exception as error:
            log.warning("%s does not keep a model loaded: %s", member.decoder, error)

    def _reside(self, member: FleetMember, key: str, source: DeciderSource, stopped: Callable[[], bool]) -> None:
        host = RayHost(member, self.translated(source, member), f"a model of {member.decoder}")
        host.start(until_away(stopped, member) if member.state == "up" else stopped)
        # Two may do so at once: whoever is the first to use a model, and whoever starts the decoder.
        if not host.up or member.residents.setdefault(key, host) is not host:
            host.close()

    def reside_all(self, member: FleetMember, stopped: Callable[[], bool]) -> None:
        """Load all that is kept in a decoder that has just begun. Raises UserError."""
        for key, source in list(self._residents.items()):
            self._reside(member, key, source, stopped)


def until_away(stopped: Callable[[], bool], member: FleetMember) -> Callable[[], bool]:
    return lambda: stopped() or not member.alive()


def prefix_of(source: DeciderSource) -> str:
    """What sources have in common that share a model and its tools."""
    spec = getattr(source, "spec", None)
    told = repr(source) if spec is None else json.dumps([type(source).__name__, spec.model, spec.tools], default=repr)
    return hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()
