"""OpenFunctions v1's test file: one function with each question, the answer as a Python call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.sample import Dropped, Sample, Unusable
from rtcontrol.models.data.sources.files import data_file, items, located, version
from rtcontrol.models.data.types import tool
from rtcontrol.models.data.values import call_of, coerced


def samples(given: str) -> Iterator[Sample | Dropped]:
    """The file's samples; those whose function takes no parameters are dropped, as the paper's 109 of 112 are.

    What is called is `api_call`, not `name`. Values are read by their parameter's type (one answer has a string for a
    list, two a bare `true`).
    """
    path = data_file(located(given, "OpenFunctions v1"), "gorilla_openfunctions_v1_test.json")
    source = f"openfunctions v1 ({version(path)})"
    for n, (where, value) in enumerate(items(path)):
        try:
            yield _sample(value, f"openfunctions_{n}", source, where)
        except Unusable as error:
            yield Dropped(error.reason, where, error.detail, source)
        except (LookupError, TypeError, AttributeError) as error:
            yield Dropped("a sample of another shape than OpenFunctions'", where, repr(error)[:120], source)


def _sample(value: Mapping[str, Any], name: str, source: str, where: str) -> Sample:
    function = value["function"]
    parameters = dict(function.get("parameters") or {})
    if not parameters.get("properties"):
        raise Unusable("a function without parameters", str(function.get("api_call")))
    if "required" in function:  # one has it beside its parameters
        parameters.setdefault("required", function["required"])
    shown = tool(function["api_call"], function.get("description"), parameters)
    properties = shown["function"]["parameters"]["properties"]
    call = call_of(value["model_answer"])
    if call.name != function["api_call"]:
        raise Unusable("a call of a function that is not shown", call.name)
    read = Call(call.name, {k: coerced(v, properties.get(k, {})) for k, v in call.arguments.items()})
    return Sample(name, source, where, value["question"], "", (shown,), (read,))
