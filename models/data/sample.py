"""What a set's loader gives: samples as the set has them, and why others gave none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import Check


@dataclass(frozen=True)
class Sample:
    """One turn: the query, what is known besides, the tools shown (OpenAI-style, JSON Schema's types), and its calls in
    the order given. `checks` are for an official checker, one a call, or none. `where` is its file and line."""

    id: str
    source: str
    where: str
    instruction: str
    observation: str
    tools: tuple[Mapping[str, Any], ...]
    calls: tuple[Call, ...]
    history: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True)
class Dropped:
    """A sample that gives no row: the `reason`, in words that many share; `where` it is (file and line), and what of it
    in particular."""

    reason: str
    where: str
    detail: str = ""
    source: str = ""


class Unusable(Exception):
    """A sample cannot be read: `reason` and `detail` as in `Dropped`."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail
