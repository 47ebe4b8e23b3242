"""Hosts with a second decider (`--backup`), and of plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rtcontrol.hosts.backup_core import BACKUP, FIRST, BackupCore, Handover
from rtcontrol.hosts.host_core import HostListener
from rtcontrol.hosts.layered import LayeredHost
from rtcontrol.hosts.plan_core import PLANNER, PlanCore, PlanTerms
from rtcontrol.hosts.protocol import Host
from rtcontrol.models.call import Call


class PlanHost(LayeredHost):
    """Plans: an answer of several calls (a chunk) is executed step by step, while the next one is made."""

    name = "plans"

    def __init__(
        self,
        planner: Host,
        terms: PlanTerms,
        legal: Callable[[Call], bool],
        listener: HostListener | None = None,
    ) -> None:
        super().__init__(PlanCore(terms, legal), {PLANNER: planner}, listener)


class BackupHost(LayeredHost):
    """Two deciders (`--backup`), who are asked at once."""

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
