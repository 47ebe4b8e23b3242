"""The model card of what was fitted: what it learnt, from what, and how well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rtcontrol.models.schema.tool_schema import ToolSchema
from rtcontrol.training.dataset import SAMPLE, Share
from rtcontrol.training.validation import Truth

NAME = "README.md"


def card(
    title: str,
    tools: Sequence[ToolSchema],
    source: str,
    truth: Truth,
    figures: Mapping[str, Any],
    notes: Sequence[str],
    instructions: Sequence[str],
    played: Mapping[str, Share],
) -> str:
    """The text of the card; `played` are the episodes in its world that succeeded, by what was told."""
    calls = ", ".join(f"`{t.name}({', '.join(p.name for p in t.parameters)})`" for t in tools)
    told = "\n".join(f"- {text}" for text in instructions)
    remarks = "".join(f"\n- {note}" for note in notes) or "\n- none"
    size = (
        f"Qwen2 architecture, {figures['layers']} layers of {figures['hidden']}, {figures['parameters']:,} parameters"
    )
    rows, held = figures["rows"], figures["held_out"]
    learnt, often = "rows without end", ""
    if rows is not None:
        learnt, often = f"{rows:,} rows learnt from", f" ({figures['samples'] / max(rows, 1):.1f} of each row)"
    apart = "whose questions were never trained on"
    if played:
        apart = "of seeds that were never trained on (the same text may have stood there all the same)"
    flown = "".join(f"\nIn its world, {told}: {share.message()}.\n" for told, share in played.items())
    parts = truth.parts
    table = "\n".join([*_rows("tool", parts.tools), *_rows("argument", parts.arguments), *_rows("told", parts.goals)])
    swaps = "".join(f"\n- {line}" for line in truth.messages()) or "\n- there are none that stand for each other"
    return f"""---
library_name: rtcontrol
---
# {title}: a small SimpleTool controller

{size}. It knows {calls}, and nothing else. Made by `rtcontrol fit` (rtcontrol {figures["version"]}).

## Data

{source}: {learnt}, {held:,} held out, {apart};
the first {min(held, SAMPLE)} of them also chose the weights and the end of the run. What was noticed:
{remarks}

It was told, among others:
{told}

## Training

{figures["samples"]:,} samples{often} in {figures["seconds"]:.0f} s, seed {figures["seed"]};
`training/log.jsonl` is the log.

## Score

Held-out rows: {truth.score.message()}.
{flown}
| | right | of |
|---|---|---|
{table}

Other words in the place of those of the instruction, on held-out rows:
{swaps}
"""


def _rows(kind: str, shares: Mapping[str, Share]) -> list[str]:
    return [f"| {kind} {name} | {share.right} | {share.count} |" for name, share in shares.items()]


def write_card(folder: Path, text: str) -> None:
    """Beside the weights."""
    (folder / NAME).write_text(text, "utf-8")
