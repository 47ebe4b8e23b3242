"""The model card: from which base and rows, by which recipe, how well."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rtcontrol.models.train.finetune.dataset import SETS, SeenRows

NAMED = ("rtcontrol", "torch", "transformers", "peft", "accelerate")


def card(result: Mapping[str, Any], seen: SeenRows) -> str:
    """The text of `README.md`; `result` is `FinetuneOutcome.to_dict()`."""
    run = result["run"]
    base, recipe = run["base"], run["recipe"]
    files = "\n".join(f"| `{path}` | `{sha}` |" for path, sha in run["rows"].items())
    dropped = "".join(f"\n- {count} left out: {reason}" for reason, count in result["dropped"].items())
    settings = "\n".join(f"| {name} | {_shown(value)} |" for name, value in recipe.items())
    sets = len(seen.tool_sets)
    tokens = seen.tokens / max(result["groups"], 1)
    many = f"more than {SETS}" if sets > SETS else str(sets)
    return f"""---
library_name: rtcontrol
---
# {base["name"]}, fine-tuned to the ST format

Made by `rtcontrol models train` ({", ".join(f"{name} {_version(name)}" for name in NAMED)}) from `{base["name"]}`
(sha256 of its files `{base["sha256"]}`).

## Data

{result["groups"]:,} of {seen.rows:,} rows, {many} sets of tools, {tokens:.0f} tokens a row with all its heads.{dropped}

| file | sha256 |
|---|---|
{files}

## Training

{result["steps"]:,} steps of {recipe["groups"]} groups; the loss of the last ones was {_shown(result["loss"])}.

| setting | value |
|---|---|
{settings}

## Score

{_score(result["held_out"])}
"""


def _score(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "No rows were held out."
    heads = "\n".join(f"| {name} | {share:.4f} |" for name, share in found["heads"].items())
    return f"""{found["rows"]:,} held-out rows: {found["rows_right"]:.4f} right in every head when decoded greedily and
unconstrained; weighted loss {found["loss"]:.4f}.

| head, where it is not null | right |
|---|---|
{heads}"""


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(_shown, value)) if isinstance(value, list) else str(value)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # a source tree
        return "of a source tree"
