"""Scores of the bundled models as tables, and the README's six results, from the files that hold the figures."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from rtcontrol.bench.hand_kept import hand_kept
from rtcontrol.envs import registry
from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.metrics.intervals import wilson
from rtcontrol.telemetry.figure_table import NOT_MEASURED, Table, ms

MODELS = registry.agent_names()  # of the judged worlds
NONSENSE = ("nonsense a", "nonsense b", "nonsense of strangers a", "nonsense of strangers b")
OTHERS = ("expert", "no-op", "random")
GPU_SHAPE = "qwen2.5-0.5b"
SERVING_CASE = "late, bf16"


def scores(model: str) -> dict[str, Any]:
    """What the bundled model's own scores say."""
    return dict(json.loads((ZOO / model / "scores.json").read_text("utf-8")))


def parameters(model: str) -> int:
    """How many numbers its weights are, as the header of their file says."""
    with (ZOO / model / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def episodes(document: dict[str, Any]) -> int:
    """How many a goal was flown in."""
    first, last = document["seeds"]
    return int(last - first + 1)


def score_tables() -> list[Table]:
    """A table a model: goal by goal beside expert, no-op, random, and the model told another goal."""
    found = []
    for model in MODELS:
        document = scores(model)
        count, rows = episodes(document), []
        other = "told another" if model == "driver" else "told the opposite"
        for goal, result in document["goals"].items():
            low, high = wilson(result["model"], count)
            cells = (f"{result['model']}", f"{low:.2f}-{high:.2f}", *(str(result[name]) for name in OTHERS))
            rows.append((goal, *cells, "-" if result[other] is None else str(result[other])))
        ends = sum((Counter(result["model ends"]) for result in document["goals"].values()), Counter())
        lists = document["phrasings"]
        strangers = " and ".join(
            f"{lists[name]['right']} of {lists[name]['said']} right (the same goals as they are written: "
            f"{lists[name]['canonical']})"
            for name in ("strangers a", "strangers b")
        )
        held = " and ".join(f"{lists[name]['held']} of {lists[name]['said']}" for name in NONSENSE if name in lists)
        first, last = document["seeds"]
        ended = ", ".join(f"{end} {n}" for end, n in ends.items())
        note = (
            f"Lockstep, seeds {first} to {last}, {count} episodes a goal, Wilson 95 % intervals. The model's episodes "
            f"end so: {ended}. In the words of two writers who knew nothing of this project "
            f"([strangers.md](strangers.md)): {strangers}. Sentences that mean nothing and are held: {held}."
        )
        columns = (f"of {count}", "interval", *OTHERS, other)
        title = f"{model}, {parameters(model):,} parameters"
        found.append(Table(title, ("goal", *columns), tuple(rows), note))
    return found


def _done(model: str, who: str) -> tuple[int, int]:
    document = scores(model)
    return sum(result[who] for result in document["goals"].values()), episodes(document) * len(document["goals"])


def _read(path: Path) -> dict[str, Any] | None:
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else None


def results_table(folder: Path) -> str:
    """Six rows: the question, the result, and under which conditions. What has no file is not measured."""
    questions = (_on_time, _decide, _gpu, _serving, _faults)
    rows = [("question", "result", "conditions"), ("---", "---", "---"), _fly(), *(row(folder) for row in questions)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _fly() -> tuple[str, str, str]:
    done = ", ".join("{} {} of {}".format(model, *_done(model, "model")) for model in MODELS)
    experts = ", ".join(str(_done(model, "expert")[0]) for model in MODELS)
    return "Do the models do what they are told?", done, f"lockstep, new seeds; scripted experts: {experts}"


def _on_time(folder: Path) -> tuple[str, str, str]:
    question, entry = "Are calls on time?", hand_kept(folder).get("on-time")
    if entry is None:
        return question, NOT_MEASURED, ""
    v = entry.values
    result = f"{v['misses']} misses of {v['releases']}; latency p50 {v['p50']} ms, p99 {v['p99']} ms"
    return question, result, "10 minutes at 16 Hz, 2 CPU cores, the lander before today's"


def _decide(folder: Path) -> tuple[str, str, str]:
    question, document = "What does one pass save on a CPU?", _read(folder / "decide.json")
    if document is None:
        return question, NOT_MEASURED, ""
    result = document["schemas"]["bundled"]
    took = {way: result["ms"][way]["p50"] for way in ("one_pass", "json", "json_skip_forced")}
    ways = f"as JSON {ms(took['json'])} ms, forced tokens skipped {ms(took['json_skip_forced'])} ms"
    return question, f"one pass {ms(took['one_pass'])} ms; {ways}", "p50 of the lander's calls, fp32, 1 thread"


def _gpu(folder: Path) -> tuple[str, str, str]:
    question, document = "And on a GPU?", _read(folder / "sizes-gpu.json")
    if document is None:
        return question, NOT_MEASURED, ""
    took = {way: found["p50"] for way, found in document["shapes"][GPU_SHAPE]["ms"].items()}
    ways = f"as JSON {ms(took['json'])} ms, forced tokens skipped {ms(took['json_skip_forced'])} ms"
    conditions = f"p50, *random weights* of the shape {GPU_SHAPE}, {document['machine']['gpu']}"
    return question, f"one pass {ms(took['one_pass'])} ms; {ways}", conditions


def _serving(folder: Path) -> tuple[str, str, str]:
    question, document = "And beside vLLM?", _read(folder / "serving.json")
    if document is None:
        return question, NOT_MEASURED, ""
    took = {way: found["p50"] for way, found in document["cases"][SERVING_CASE]["ms"].items()}
    ways = f"heads on vLLM at best {ms(took['simpletool_best'])} ms, its JSON {ms(took['vllm_json'])} ms"
    return (
        question,
        f"one pass {ms(took['one_pass'])} ms; {ways}",
        "p50, *random weights* of 15 M parameters, bf16, 2 CPU cores",
    )


def _faults(folder: Path) -> tuple[str, str, str]:
    question, entry = "Is each miss's cause found?", hand_kept(folder).get("faults")
    if entry is None:
        return question, NOT_MEASURED, ""
    v = entry.values
    result = f"{v['attributed']} of {v['injected']} injected faults; of {v['missed']} misses {v['unknown']} unknown"
    return question, result, f"a drill of {v['minutes']} minutes; {v['violated']} safety rules violated"
