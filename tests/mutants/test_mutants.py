"""Each claim of safety and exactness breaks by a line, and a test of the default suite notices.

The claims are the entries of this folder's `*.toml`: `claim`, `file`, `old` (stands once in the file), `new`, and the
`tests` of which at least one must fail. `pytest -m slow tests/mutants` breaks a copy of the tree by one entry after
the other, `-k WORD` by those of a file or with a word in their claim; one that survives is a claim that nothing checks.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.processes import ROOT

HERE = Path(__file__).parent
LIMIT_S = 240


@dataclass(frozen=True)
class Mutant:
    claim: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def broken(self, root: Path) -> str:
        """The file's text with the one replacement."""
        text = (root / self.file).read_text()
        assert text.count(self.old) == 1, f"{self.file} has {text.count(self.old)} times: {self.old}"
        assert self.new != self.old
        return text.replace(self.old, self.new)


MUTANTS = {
    f"{path.stem}: {fields['claim']}": Mutant(**{**fields, "tests": tuple(fields["tests"])})
    for path in sorted(HERE.glob("*.toml"))
    for fields in tomllib.loads(path.read_text()).get("mutant", [])
}


def test_every_mutant_names_a_line_that_stands_once_and_tests_that_exist() -> None:
    count = sum(path.read_text().count("[[mutant]]") for path in HERE.glob("*.toml"))
    assert len(MUTANTS) == count, "two entries of one file have the same claim"
    wrong = []
    for name, mutant in MUTANTS.items():
        try:
            text = mutant.broken(ROOT)
            if mutant.file.endswith(".py"):
                ast.parse(text)
        except (AssertionError, OSError, SyntaxError) as error:
            wrong.append(f"{name}: {error}")
        assert mutant.tests, name
        wrong += [f"{name}: there is no {test}" for test in mutant.tests if not _exists(test)]
    assert wrong == [], "\n".join(wrong)


def _exists(test: str) -> bool:
    """A test's function may be given a case of its parameters, which is not looked for."""
    file, _, name = test.partition("::")
    if not (ROOT / file).is_file():
        return False
    function = name.partition("[")[0].rpartition("::")[2]
    return re.search(rf"^ *def {re.escape(function)}\(", (ROOT / file).read_text(), re.MULTILINE) is not None


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the tree as it is: what git tracks, and what is new and not ignored."""
    to = tmp_path_factory.mktemp("tree")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not in a git checkout")
    for name in filter(None, done.stdout.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


@pytest.fixture
def tree(copy: Path, mutant: str) -> Iterator[Path]:
    file = copy / MUTANTS[mutant].file
    whole = file.read_text()
    file.write_text(MUTANTS[mutant].broken(copy))
    yield copy
    file.write_text(whole)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case a mutant where slow tests are asked for; else one that stands for all."""
    if "mutant" in metafunc.fixturenames:
        asked = metafunc.config.option.markexpr != "not slow"
        metafunc.parametrize("mutant", list(MUTANTS) if asked else ["all"])


@pytest.mark.slow
def test_mutant_is_noticed(mutant: str, tree: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | {"PYTHONPATH": str(tree)}
    # A file that was changed within a second of another change has the size and time of its bytecode.
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", f"--timeout={LIMIT_S // 2}"]
    command.append("--hypothesis-profile=mutants")
    try:
        done = subprocess.run(
            [*command, *MUTANTS[mutant].tests],
            cwd=tree,
            env=env,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return  # tests that do not end are noticed
    said = (done.stdout + done.stderr)[-3000:]
    if done.returncode == 0 and re.search(r"\b\d+ skipped", said) and " passed" not in said:
        pytest.skip(f"its tests are skipped here: {said[-300:]}")
    assert done.returncode != 0, f"survives: {MUTANTS[mutant]}"
    assert done.returncode == 1, f"its tests do not run: {said}"
