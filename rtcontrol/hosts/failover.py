"""Two deciders for one session (`--backup`): the first one's answers count where they are in time and confident; a
backup decides all else in the time that is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rtcontrol.hosts.backup_core import BACKUP, FIRST, BackupCore, Handover
from rtcontrol.hosts.host_events import HostListener
from rtcontrol.hosts.layered import LayeredHost
from rtcontrol.hosts.plan_host import PlanHost
from rtcontrol.hosts.protocol import Host


class BackupHost(LayeredHost):
    """Asks both at once; `BackupCore` says whose answer counts."""

    name = "backup"
    core: BackupCore

    def __init__(self, first: Host, backup: Host, terms: Handover, listener: HostListener | None = None) -> None:
        plans = isinstance(first, PlanHost)
        super().__init__(BackupCore(replace(terms, plans=plans)), {FIRST: first, BACKUP: backup}, listener)

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        info = self.inner[FIRST].start(stopped)
        return {} if stopped() else {**info, BACKUP: self.inner[BACKUP].start(stopped)}

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        """Those that every tick depends on."""
        return self.inner[FIRST if self.core.alone else BACKUP].threads
