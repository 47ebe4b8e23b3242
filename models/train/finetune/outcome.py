"""What a finished fine-tuning leaves: the adapter, and the merged checkpoint with its card and what it learnt."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from rtcontrol.models.checkpoint.prompt import FILE_NAME as TEMPLATE
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.files import no_link, replace_file
from rtcontrol.models.train.adopt import export
from rtcontrol.models.train.finetune.dataset import SETS, SeenRows
from rtcontrol.models.train.finetune.model import TreeLM, merged

MODEL, ADAPTER, RESULT = "model", "adapter", "result.json"
# Of the base's files those that its users may look for.
KEPT = ("generation_config.json", "chat_template.jinja", "LICENSE")


@dataclass(frozen=True)
class FinetuneOutcome:
    """`steps` done, on `groups` rows; `history` are the lines of the log; `held_out` is what `measure` gave; `told` is
    the run's identity; `written`: whether this process is the one that writes."""

    out: Path
    steps: int
    groups: int
    seen: SeenRows
    history: Sequence[Mapping[str, Any]]
    held_out: Mapping[str, Any] | None
    told: Mapping[str, Any]
    written: bool = True

    @property
    def model(self) -> Path:
        """The merged checkpoint."""
        return self.out / MODEL

    def to_dict(self) -> dict[str, Any]:
        """As `result.json` has it."""
        return {
            "steps": self.steps,
            "groups": self.groups,
            "dropped": dict(self.seen.dropped),
            "loss": self.history[-1]["loss"] if self.history else None,
            "held_out": self.held_out and dict(self.held_out),
            "run": dict(self.told),
        }


def write_outcome(
    outcome: FinetuneOutcome, model: TreeLM, base: Path, tokenizer: STTokenizer, dtype: torch.dtype
) -> None:
    """Adapter, merged checkpoint, result; each is written aside and renamed when it is whole. `model` is of no use
    afterwards."""
    with _aside(outcome.out / ADAPTER) as part:
        # The embeddings are trained too: an adapter without them is another model.
        model.lm.save_pretrained(part, save_embedding_layers=True)
        (part / "README.md").unlink(missing_ok=True)  # peft's own, which names the base's folder
    with _aside(outcome.out / MODEL) as part:
        settings = json.loads((base / "tokenizer_config.json").read_text("utf-8"))
        template = json.loads((base / TEMPLATE).read_text("utf-8"))
        own = Tokenizer.from_file(str(base / "tokenizer.json"))
        export(merged(model, dtype), own, template, part, dtype, settings.get("eos_token", "<|im_end|>"))
        for name in KEPT:
            if (base / name).is_file():
                shutil.copy(base / name, part / name)
        learnt(outcome.seen).write(part)
        (part / "README.md").write_text(card(outcome.to_dict(), outcome.seen), "utf-8")
    write_json(outcome.out / RESULT, outcome.to_dict())


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """An old file stays until the new one is whole."""
    replace_file(no_link(path), json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def learnt(seen: SeenRows) -> TrainingMetadata:
    """What the checkpoint says of itself; one of many tool sets reads tools, and may try others."""
    sets = tuple(seen.tool_sets.values()) if len(seen.tool_sets) <= SETS else ()
    return TrainingMetadata(sets, history=seen.history, allow_null=seen.null, any_tools=len(seen.tool_sets) > SETS)


@contextmanager
def _aside(place: Path) -> Iterator[Path]:
    """A folder beside `place`, which it replaces when the block ended well; else it is removed."""
    part = place.with_name(f"{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        shutil.rmtree(place, ignore_errors=True)
        os.replace(part, place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


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
