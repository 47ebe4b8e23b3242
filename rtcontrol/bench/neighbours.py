"""A neighbouring project's decision model, beside ours where it is installed: simthinkd, one choice of actions."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from importlib import resources
from itertools import cycle
from typing import Any

from rtcontrol.record.machine import version

SIMTHINKD = "simthinkd"


def simthinkd() -> Callable[[], Any] | None:
    """One decision of its bundled model on the next of its own recorded states, text to choice; None where it is not
    installed (`pip install simthinkd`)."""
    if version(SIMTHINKD) is None:
        return None
    decider = importlib.import_module(SIMTHINKD).Decider("doom-defend")
    states = resources.files(SIMTHINKD).joinpath("data/doom_defend_states.json").read_text("utf-8")
    bodies = cycle([row["body"] for row in json.loads(states)["rows"]])
    return lambda: decider.predict(next(bodies))
