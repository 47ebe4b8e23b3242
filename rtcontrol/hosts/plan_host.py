"""Plans: an answer of several calls (a chunk) is executed step by step, while the next one is made."""

from __future__ import annotations

from collections.abc import Callable

from rtcontrol.hosts.host_events import HostListener
from rtcontrol.hosts.layered import LayeredHost
from rtcontrol.hosts.plan_core import PLANNER, PlanCore, PlanTerms
from rtcontrol.hosts.protocol import Host
from rtcontrol.models.call import Call


class PlanHost(LayeredHost):
    """Asks `planner`; `PlanCore` says which step of a plan answers each tick. `legal` judges a call."""

    name = "plans"

    def __init__(
        self, planner: Host, terms: PlanTerms, legal: Callable[[Call], bool], listener: HostListener | None = None
    ) -> None:
        super().__init__(PlanCore(terms, legal), {PLANNER: planner}, listener)
