"""OpenFunctions v1's test file: one function with each question, the answer as a Python call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.sample import Dropped, Sample, Unusable
from rtcontrol.models.data.sources import files
from rtcontrol.models.data.written import call_of, coerced, tool


def samples(given: str) -> Iterator[Sample | Dropped]:
    """The file's samples; those whose function takes no parameters are dropped, as the paper's 109 of 112 are.

    What is called is `api_call`, not `name`. Values are read by their parameter's type (one answer has a string for a
    list, two a bare `true`).
    """
    path = files.data_file(files.located(given, "OpenFunctions v1"), "gorilla_openfunctions_v1_test.json")
    source, numbers = f"openfunctions v1 ({files.version(path)})", count()

    def read(value: Mapping[str, Any], where: str) -> Iterator[Sample]:
        name, function = f"openfunctions_{next(numbers)}", value["function"]
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
        right = Call(call.name, {k: coerced(v, properties.get(k, {})) for k, v in call.arguments.items()})
        yield Sample(name, source, where, value["question"], "", (shown,), (right,))

    return files.samples(files.items(path), read, source, "a sample of another shape than OpenFunctions's")
