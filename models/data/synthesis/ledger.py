"""What was answered so far: a file beside the one that is wanted, from which a run goes on."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtcontrol.models.data.synthesis.endpoint import drawn
from rtcontrol.models.data.synthesis.tool_sets import ToolSet
from rtcontrol.models.errors import UserError
from rtcontrol.models.strict_json import strict_json

TRIED = 32  # requests whose prompts are counted
ROW_TOKENS = 90  # of an instruction, its call as JSON and what is around them
CHARACTERS = 4.0  # a token has about so many where there is no tokenizer


@dataclass(frozen=True)
class Prices:
    """Of a million tokens, in whatever money they are given in."""

    prompt: float = 0.0
    completion: float = 0.0

    def of(self, prompt_tokens: float, completion_tokens: float) -> float:
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / 1e6


@dataclass(frozen=True)
class CostEstimate:
    """Of what is still to be asked; `cost` by the prices."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: float


def characters(text: str) -> float:
    """Tokens of a text where no tokenizer is at hand."""
    return len(text) / CHARACTERS


def estimate(
    sets: Sequence[ToolSet],
    shares: dict[int, float],
    rows: int,
    per_request: int,
    seed: int,
    prices: Prices,
    tokens_of: Callable[[str], float] = characters,
) -> CostEstimate:
    """Of so many rows more, should each one be good: prompts as they will be (a part of them counted), answers as long
    as rows usually are."""
    requests = math.ceil(rows / per_request)
    tried = [drawn(sets, shares, per_request, seed, n).messages() for n in range(min(requests, TRIED))]
    each = sum(tokens_of(message["content"]) for one in tried for message in one) / max(len(tried), 1)
    prompt, completion = each * requests, float(ROW_TOKENS * rows)
    return CostEstimate(requests, round(prompt), round(completion), prices.of(prompt, completion))


class Ledger:
    """`OUT.answers`: a first line that says how it is made, and a line for each request that was answered. A last line
    that was cut short (the process died) is forgotten; anything else that is broken is told."""

    def __init__(self, out: Path, made_by: Mapping[str, Any]) -> None:
        self.path = out.with_name(out.name + ".answers")
        self._made_by = json.loads(json.dumps(dict(made_by)))
        self.entries: dict[int, dict[str, Any]] = {}
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        try:
            lines = self.path.read_bytes().split(b"\n")
        except OSError as error:
            raise UserError(f"{self.path} cannot be read ({error.strerror}).", "Give another --out.") from None
        whole, cut_short = lines[:-1], lines[-1]
        for n, line in enumerate(whole, 1):
            try:
                found = strict_json(line.decode())
                if n == 1:
                    made_by = found["made_by"]
                else:
                    self.entries[found["request"]] = found
            except (ValueError, LookupError, TypeError):
                raise UserError(
                    f"{self.path}:{n}: it is no line of an earlier run.", "Remove the file, or give another --out."
                ) from None
        if whole and made_by != self._made_by:
            other = sorted(k for k in {*made_by, *self._made_by} if made_by.get(k) != self._made_by.get(k))
            raise UserError(
                f"{self.path} was begun with other options ({', '.join(other)}).",
                "Give the same ones to go on, or remove it to begin anew, or give another --out.",
            )
        if cut_short:
            self._write("".join(f"{line.decode()}\n" for line in whole), "w")

    def add(self, request: int, **entry: Any) -> None:
        """A request that was answered. Raises UserError where it cannot be written; what was there before stays."""
        first = "" if self.path.exists() else json.dumps({"made_by": self._made_by}, ensure_ascii=False) + "\n"
        self.entries[request] = {"request": request, **entry}
        self._write(first + json.dumps(self.entries[request], ensure_ascii=False) + "\n", "a")

    def _write(self, text: str, mode: str) -> None:
        before = self.path.stat().st_size if mode == "a" and self.path.exists() else 0
        try:
            with self.path.open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            with suppress(OSError):  # half a line would end what can be read
                os.truncate(self.path, before)
            raise UserError(
                f"{self.path} cannot be written ({error.strerror}).",
                "Make room, and run the same command again: it goes on where it was.",
            ) from None

    def remove(self) -> None:
        """When all is written where it is wanted."""
        self.path.unlink(missing_ok=True)
