"""docs/benchmarks.md and the README have the results of the JSON files."""

from __future__ import annotations

import json
import math
from typing import Any

from rtcontrol.bench.page import BLOCK, fill_page
from rtcontrol.envs import registry
from rtcontrol.models.checkpoint.checkpoint import ZOO
from tests.helpers.processes import ROOT

FOLDER = ROOT / "docs" / "benchmarks"
FILES = [*FOLDER.glob("*.json")]
PAGE = FOLDER.with_suffix(".md").read_text("utf-8")


def document(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def score(model: str) -> tuple[int, dict[str, int]]:
    """Return the number of episodes, and the successes of each policy."""
    scores = json.loads((ZOO / model / "scores.json").read_text("utf-8"))
    first, last = scores["seeds"]
    goals = scores["goals"].values()
    right = {pilot: sum(goal[pilot] for goal in goals) for pilot in ("model", "expert", "no-op", "random")}
    return (last - first + 1) * len(goals), right


def saved(times: dict[str, dict[str, float]]) -> str:
    one, plain, skipped = (times[way]["p50"] for way in ("one_pass", "json", "json_skip_forced"))
    return f"one pass {one:.2f} ms; as JSON {plain:.2f} ms, forced tokens skipped {skipped:.2f} ms"


def test_page_has_tables_of_json_files() -> None:
    assert fill_page(PAGE, FOLDER) == PAGE, "run `python -m rtcontrol.bench.page`"
    assert {f"{match[1]}.json" for match in BLOCK.finditer(PAGE)} == {path.name for path in FILES}
    assert len(PAGE.split()) <= 3_000


def test_the_scores_are_those_of_the_bundled_models() -> None:
    for model in registry.AGENTS:
        count, right = score(model)
        with (ZOO / model / "model.safetensors").open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        size = sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
        assert f"| {model} | {size:,} | {count} | {' | '.join(map(str, right.values()))} |" in PAGE


def test_readme_has_results_of_json_files() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    table = readme.partition("<!-- results -->")[2].partition("<!-- /results -->")[0].strip().splitlines()
    results = [row.split("|")[2].strip() for row in table[2:]]
    scores = {model: score(model) for model in registry.AGENTS}
    gpu, vllm = document("sizes-gpu"), document("serving")["cases"]["lander, bf16"]["ms"]
    one, heads, text = (vllm[way]["p50"] for way in ("one_pass", "simpletool_best", "vllm_json"))
    assert results[0] == ", ".join(f"{model} {right['model']} of {count}" for model, (count, right) in scores.items())
    assert ", ".join(str(right["expert"]) for _, right in scores.values()) in table[2]
    assert results[1] in PAGE and results[5] in PAGE, "kept by hand, in the same words"
    assert results[2] == saved(document("decide")["schemas"]["bundled"]["ms"])
    assert results[3] == saved(gpu["schemas"]["qwen2.5-0.5b"]["ms"]) and gpu["machine"]["gpu"] in table[5]
    assert results[4] == f"one pass {one:.2f} ms; heads on vLLM at best {heads:.2f} ms, its JSON {text:.2f} ms"
    assert len(results) == 6
