"""The official checker of BFCL in a process of its own: cases on standard input, verdicts on standard output, one JSON
value a line. The one argument is the folder that `bfcl_eval` stands in.

The checker's module imports a table of models, and with it every provider's client, of which it asks one thing alone:
whether a model writes underscores for dots. So a table that says no stands there instead.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from typing import Any


class _NoModel:
    underscore_to_dot = False


class _EveryModel(dict[str, _NoModel]):
    def __missing__(self, name: str) -> _NoModel:
        return _NoModel()


def main() -> None:
    sys.path.append(sys.argv[1])
    table: Any = types.ModuleType("bfcl_eval.constants.model_config")
    table.MODEL_CONFIG_MAPPING = _EveryModel()
    sys.modules[table.__name__] = table
    check = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker").ast_checker
    python = importlib.import_module("bfcl_eval.constants.enums").Language.PYTHON
    for line in sys.stdin:
        case = json.loads(line)
        calls = [{call["name"]: call["arguments"]} for call in case["calls"]]
        try:
            found = check(case["functions"], calls, case["answer"], python, case["category"], "any")
            told = {"valid": bool(found["valid"]), "error": str(found.get("error", "")), "raised": False}
            told["kind"] = "" if told["valid"] else str(found.get("error_type", ""))
        except Exception as error:  # of answers and functions that it does not expect
            told = {"valid": False, "error": f"{type(error).__name__}: {error}", "raised": True}
            told["kind"] = "the checker raised an error"
        print(json.dumps(told))


if __name__ == "__main__":
    main()
