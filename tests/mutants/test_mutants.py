"""A test of the suite notices each mutant (`locating.py`) in a copy of the tree: `pytest -m slow tests/mutants`.

It fails in its body, not while it is collected or set up, by no name or module that is missing, and not without the
mutant too. `-k WORD` picks those of a file or with a word in their claim. A mutant that survives is a claim that
nothing checks.
"""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest

from tests.helpers.processes import ROOT
from tests.mutants.locating import MUTANTS, Sources

LIMIT_S = 240
# What breaks the program, not a claim: anything would notice.
NONSENSE = re.compile(r"\b(SyntaxError|IndentationError|NameError|UnboundLocalError|ImportError|ModuleNotFoundError)\b")
OPTIONS = f"-m pytest -q -x -n0 -p no:cacheprovider --timeout={LIMIT_S // 2} --hypothesis-profile=mutants"
NO_END = "it does not end"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the tree as it is: what git tracks, and what is new and not ignored."""
    to = tmp_path_factory.mktemp("tree")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not in a git checkout")
    for name in filter(None, done.stdout.split("\0")):
        if (ROOT / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            # Links stay links: of folders as rtcontrol/agents, too.
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    # By hash: a file that was changed within a second of another change has the size and time of its bytecode.
    compileall.compile_dir(to, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return to


@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT_S)
@pytest.mark.parametrize("mutant", MUTANTS, ids=MUTANTS)  # given, since pytest makes none of a long name
def test_mutant_is_noticed(mutant: str, copy: Path) -> None:
    named = MUTANTS[mutant]
    file, text = named.broken(Sources(copy))
    whole = file.read_text()
    file.write_text(text)
    try:
        status, said = run(copy, named.tests)
    finally:
        file.write_text(whole)
    if status == 0 and " passed" not in said and " skipped" in said:
        pytest.skip("its tests are skipped here")
    assert status != 0, f"SURVIVES {' '.join(named.tests)}"
    failed = re.findall(r"^FAILED ([^\[\s]+)(.*)", said, re.MULTILINE)
    assert failed or said == NO_END, f"DOES NOT RUN:\n{said}"
    assert not any(NONSENSE.search(why) for _, why in failed), f"IS NONSENSE: {failed}"
    status, said = run_whole(copy, tuple(test for test, _ in failed) or named.tests)
    assert status == 0, f"FAILS WITHOUT IT TOO:\n{said}"


def run(tree: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """Return the exit status of these tests, and the end of what they print: NO_END where they do not end in time."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    env |= {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'bridges'}", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "400"}
    command = [sys.executable, *OPTIONS.split(), *tests]
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return 1, NO_END
    return done.returncode, (done.stdout + done.stderr)[-3000:]


@cache
def run_whole(tree: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """Run tests without a mutant: once for all that the same tests notice."""
    return run(tree, tests)
