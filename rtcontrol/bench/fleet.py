"""`rtcontrol bench fleet`: decisions a second of two decoders beside one, by the same sessions, in turns."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from rtcontrol.bench.situations import situations
from rtcontrol.envs.registry import WORLDS  # noqa: F401  (known by name)
from rtcontrol.hosts.deciders import STSource
from rtcontrol.hosts.fleet import FleetPool
from rtcontrol.hosts.fleet_host import FleetHost
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.models.decider import DeciderSpec
