"""BFCL's own checker, in a process of its own. Of its configuration it needs `underscore_to_dot` alone: the module that
would import every provider's SDK is stood in for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

JUDGE = """
import json, sys, types
from types import SimpleNamespace
class Any(dict):
    def __missing__(self, key): return SimpleNamespace(underscore_to_dot=False)
stand_in = types.ModuleType("bfcl_eval.constants.model_config")
stand_in.MODEL_CONFIG_MAPPING = Any()
sys.modules[stand_in.__name__] = stand_in
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
from bfcl_eval.constants.enums import Language
for line in sys.stdin:
    one = json.loads(line)
    try:
        found = ast_checker(one["functions"], one["calls"], one["answer"], Language.PYTHON, one["category"], "any")
        print(json.dumps(found["valid"]))
    except Exception as error:
        print(json.dumps(repr(error)))
"""


def judged(package: Path, questions: list[dict[str, Any]]) -> list[Any]:
    """Of each {functions, calls, answer, category}: whether it is right."""
    done = subprocess.run(
        [sys.executable, "-c", JUDGE],
        input="".join(json.dumps(q) + "\n" for q in questions),
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(package.parent)},
        timeout=120,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
