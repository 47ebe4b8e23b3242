"""The model card of what was fitted: what it learnt, from what, and how well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rtcontrol.models import __version__
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


LESSON = "A scripted expert is imitated on disturbed episodes, later on episodes that the model\nplays itself."


def shape_of(model: Any) -> str:
    """Architecture, layers, width and parameters, in words."""
    own = model.config
    shape = f"{own.model_type} architecture, {own.num_hidden_layers} layers of {own.hidden_size}"
    return f"{shape}, {model.num_parameters():,} parameters"


def skill_card(
    skill: str,
    calls: Sequence[ToolSchema],
    began: Mapping[str, str],
    shape: str,
    last: Mapping[str, Any],
    how: str,
    lesson: str = LESSON,
) -> str:
    """The text of the card of a skill's run; `began` are the checkpoints by what they were for it (base, teacher),
    `last` is the last line of its log, `how` tells how it is flown again, and `lesson` what it learns from."""
    tools = ", ".join(f"`{t.name}({', '.join(p.name for p in t.parameters)})`" for t in calls)
    shown = {role: Path(name).name if Path(name).exists() else name for role, name in began.items()}
    others = "".join(f"- {role}: `{name}`\n" for role, name in shown.items()) or "- a new model, trained from nothing\n"
    learnt = "The log of this run is gone."
    if last:
        learnt = f"""{last["samples"]:,} samples in {last["seconds"]:.0f} s. In the last chunk {last["accuracy"]:.1%} of
the labels were the model's first choice. `../log.jsonl` is the log."""
    terms = (
        "\nThese weights were made from its base's: they stand under the terms of that model, whatever the licence of"
        "\nthis project is.\n"
        if began
        else ""
    )
    return f"""---
library_name: rtcontrol
---
# {skill}: a SimpleTool controller

{shape}. It calls {tools}. Made by `rtcontrol fit --skill {skill}` (rtcontrol {__version__}).

## What it began with

{others}{terms}
## Training

The recipe of the bundled {skill}. {lesson} {learnt}

## Score

The training does not measure it. On what it was not trained on:

    {how}
"""


def _rows(kind: str, shares: Mapping[str, Share]) -> list[str]:
    return [f"| {kind} {name} | {share.right} | {share.count} |" for name, share in shares.items()]


def write_card(folder: Path, text: str) -> None:
    """Beside the weights."""
    (folder / NAME).write_text(text, "utf-8")
