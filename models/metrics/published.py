"""Predictions that others published, judged again by the authors' rules: one line each, with an id and the calls, and a
file of answers in BFCL's form (`{"id", "ground_truth": [{function: {argument: [allowed values]}}]}`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import json_lines, json_value, raw_lines
from rtcontrol.models.data.sample import Unusable
from rtcontrol.models.data.values import call_of
from rtcontrol.models.errors import UserError
from rtcontrol.models.metrics.intervals import share
from rtcontrol.models.metrics.judge import Allowed, by_answer
from rtcontrol.models.schema.tool_schema import MAX_HEADS

RULES = ("strict", "loose")
# What published lines say of themselves, and the rule that it is by.
FLAGS = {"strict_correct": "strict", "overall_correct": "loose"}
REMEDY = 'Write {"id": ..., "result": [{"name": ..., "arguments": {...}}]}, one a line.'


@dataclass(frozen=True)
class PublishedQuestion:
    """What the questions' file tells of an id: whether calls were made before, and whether a tool that is shown has
    more parameters than heads."""

    history: bool
    too_many: bool


def rescore(predictions: Path, answers: Path, questions: Path | None = None) -> dict[str, Any]:
    """Shares right by both rules, and of the function; what was left out, with the reason; and where lines say of
    themselves whether they are right, how many of these agree. Raises UserError with file and line.

    With `questions`, ids whose tools have more than six parameters are left out, as the authors do. Where an answer
    lists several calls, the strict rule takes the first, or, where calls were made before, the last one. Lines of the
    answers that are no JSON (theirs have one) are told by number, and their ids have no answer.
    """
    gold, unreadable = _answers(answers)
    asked = dict(_questions(questions)) if questions is not None else {}
    right, agree, said = Counter[str](), Counter[str](), Counter[str]()
    left_out: Counter[str] = Counter()
    count, functions, seen = 0, 0, set[str]()
    for line, value in json_lines(predictions):
        where = f"{predictions}:{line}"
        name, calls = _prediction(value, where)
        if name in seen:
            raise UserError(f"{where}: the id {name!r} was there before.", "Take one of the lines away.")
        seen.add(name)
        if name not in gold:
            left_out["no answer of that id" + " that can be read" * bool(unreadable)] += 1
            continue
        if value.get("excluded") or (name in asked and asked[name].too_many):
            left_out[f"a tool with more than {MAX_HEADS} parameters" if name in asked else str(value["excluded"])] += 1
            continue
        count += 1
        for rule in RULES:
            allowed = gold[name] if rule == "loose" else _target(gold[name], name, asked, where)
            verdict = by_answer(calls, allowed, rule)
            right[rule] += verdict.right
            functions += verdict.function and rule == "strict"
            for flag, by in FLAGS.items():
                if by == rule and isinstance(value.get(flag), bool):
                    said[rule] += 1
                    agree[rule] += value[flag] == verdict.right
    missing = len(set(gold) - seen)
    return {
        "predictions": str(predictions),
        "answers": str(answers),
        "strict": share(right["strict"], count),
        "loose": share(right["loose"], count),
        "function": share(functions, count),
        "left_out": dict(left_out),
        "answers_without_prediction": missing,
        "unreadable_answers": unreadable,
        "agreement": {rule: [agree[rule], said[rule]] for rule in RULES if said[rule]},
    }


def _target(gold: list[Allowed], name: str, asked: Mapping[str, PublishedQuestion], where: str) -> list[Allowed]:
    if len(gold) < 2:
        return gold
    if name not in asked:
        raise UserError(
            f"{where}: the answer to {name!r} has {len(gold)} calls, and which of them is due was not said.",
            "Give the questions' file: it says what was called before.",
        )
    return gold[-1:] if asked[name].history else gold[:1]


def _prediction(value: Any, where: str) -> tuple[str, list[Call]]:
    if not isinstance(value, Mapping) or "id" not in value:
        raise UserError(f"{where}: it has no id.", REMEDY)
    given = value.get("result", value.get("prediction"))
    if given is None and value.get("excluded"):
        given = []
    if not isinstance(given, list):
        raise UserError(f"{where}: it has no list of calls, as `result` or `prediction`.", REMEDY)
    return str(value["id"]), [_call(one, where) for one in given]


def _call(one: Any, where: str) -> Call:
    """As name and arguments, or as BFCL has it: {name: arguments}, an object or its JSON."""
    if isinstance(one, Mapping) and isinstance(one.get("name"), str):
        name, arguments = one["name"], one.get("arguments", {})
    elif isinstance(one, Mapping) and len(one) == 1:
        ((name, arguments),) = one.items()
    else:
        raise UserError(f"{where}: {json.dumps(one)[:80]} is no call.", REMEDY)
    try:
        read = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        read = None
    if not isinstance(read, Mapping):
        raise UserError(f"{where}: the arguments {json.dumps(arguments)[:80]} are no object.", REMEDY)
    return Call(str(name), dict(read))


def _answers(path: Path) -> tuple[dict[str, list[Allowed]], list[int]]:
    """By id, and the lines that are no JSON. Raises UserError for other lines that are no answer."""
    found: dict[str, list[Allowed]] = {}
    broken: list[tuple[int, UserError]] = []
    for line, raw in raw_lines(path):
        try:
            value = json_value(raw, f"{path}:{line}")
        except UserError as error:
            broken.append((line, error))
            continue
        try:
            truth = value["ground_truth"]
            found[str(value["id"])] = [_allowed(one) for one in (truth if isinstance(truth, list) else [truth])]
        except (LookupError, TypeError, AttributeError, ValueError, Unusable):
            remedy = 'Write {"id": ..., "ground_truth": [{function: {argument: [allowed values]}}]}, one a line.'
            raise UserError(f"{path}:{line}: it is no answer.", remedy) from None
    if broken and not found:
        raise broken[0][1]
    return found, [line for line, _ in broken]


def _allowed(one: Any) -> Allowed:
    if isinstance(one, str):
        call = call_of(one)
        return {call.name: {k: [v] for k, v in call.arguments.items()}}
    return {str(name): dict(arguments) for name, arguments in one.items()}


def _questions(path: Path) -> list[tuple[str, PublishedQuestion]]:
    found = []
    for line, value in json_lines(path):
        try:
            functions = value.get("function", [])
            functions = functions if isinstance(functions, list) else [functions]
            sizes = [len((f.get("parameters") or {}).get("properties", {})) for f in functions]
            first = value["question"][0]
            message = first[0] if isinstance(first, list) else first
            history = bool(message.get("history"))
            found.append((str(value["id"]), PublishedQuestion(history, max(sizes, default=0) > MAX_HEADS)))
        except (LookupError, TypeError, AttributeError):
            raise UserError(f"{path}:{line}: it is no question of BFCL's form.", "Give the questions' file.") from None
    return found
