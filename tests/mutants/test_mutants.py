"""Each claim of safety and exactness breaks by a line, and a test of the default suite notices.

The claims are the entries of this folder's `*.toml`: `claim`, `in` (the function, class or constant that is broken, in
whatever file it stands; `file` for what is not Python), `find` (a regular expression that matches once in it),
`replace` (as of `re.sub`), and the `tests` of which at least one must fail: in its own body, not while it is collected
or set up, by no name or module that is missing, and not without the breakage too. `pytest -m slow tests/mutants`
breaks a copy of the tree by one entry after the other, `-k WORD` by those of a file or with a word in their claim, and
ends with a table; one that survives is a claim that nothing checks.

They are one for each claim of safety or exactness that README and docs make, and at most `MOST`: a new one takes the
place of one that says less.
"""

from __future__ import annotations

import ast
import compileall
import os
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

import pytest

from tests.helpers.processes import ROOT
from tests.mutants.locating import Sources

HERE = Path(__file__).parent
LIMIT_S = 240
MOST = 150
# What breaks the program, not a claim: anything would notice.
NONSENSE = re.compile(r"\b(SyntaxError|IndentationError|NameError|UnboundLocalError|ImportError|ModuleNotFoundError)\b")


@dataclass(frozen=True)
class Mutant:
    """A breakage: what `find` matches in the definition `place`, or in the file `place`, becomes `replace`."""

    place: str
    is_file: bool
    find: str
    replace: str
    tests: tuple[str, ...]

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Mutant:
        is_file = "file" in fields
        place = fields["file" if is_file else "in"]
        return cls(place, is_file, fields["find"], fields["replace"], tuple(fields["tests"]))

    def broken(self, sources: Sources) -> tuple[Path, str]:
        """The file, and its text with the one replacement."""
        where = sources.file(self.place) if self.is_file else sources.definition(self.place)
        text = where.path.read_text()
        part = text[where.start : where.end]
        changed, count = re.subn(self.find, self.replace, part, flags=re.MULTILINE)
        assert count == 1, f"{self.place} has {count} times: {self.find}"
        assert changed != part, f"nothing of {self.place} changes"
        return where.path, text[: where.start] + changed + text[where.end :]


MUTANTS = {
    f"{path.stem}: {fields['claim']}": Mutant.of(fields)
    for path in sorted(HERE.glob("*.toml"))
    for fields in tomllib.loads(path.read_text()).get("mutant", [])
}


def test_every_mutant_matches_once_and_names_tests_that_exist() -> None:
    count = sum(path.read_text().count("[[mutant]]") for path in HERE.glob("*.toml"))
    assert len(MUTANTS) == count, "two entries of one file have the same claim"
    wrong = []
    same: dict[tuple[Path, str], str] = {}
    sources = Sources(ROOT)
    for name, mutant in MUTANTS.items():
        try:
            path, text = mutant.broken(sources)
            assert (first := same.setdefault((path, text), name)) == name, f"is the breakage of {first}"
            if path.suffix == ".py":
                ast.parse(text)
        except (AssertionError, LookupError, SyntaxError, re.error) as error:
            wrong.append(f"{name}: {error}")
        assert mutant.tests, name
        wrong += [f"{name}: there is no {test}" for test in mutant.tests if not _exists(test)]
    assert wrong == [], "\n".join(wrong)


def test_they_are_no_more_than_anybody_looks_after() -> None:
    assert len(MUTANTS) <= MOST, "one for each claim of README and docs: let one go that says less"


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
        if (ROOT / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            # Links stay links: of folders as rtcontrol/agents, too.
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    # By hash: a file that was changed within a second of another change has the size and time of its bytecode.
    compileall.compile_dir(to, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return to


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case a mutant where slow tests are asked for; else one that stands for all."""
    if "mutant" in metafunc.fixturenames:
        asked = metafunc.config.option.markexpr != "not slow"
        names = list(MUTANTS) if asked else ["all"]
        metafunc.parametrize("mutant", names, ids=names)  # given, since pytest makes none of a long name


@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT_S)
def test_mutant_is_noticed(mutant: str, copy: Path, record_property: Callable[[str, object], None]) -> None:
    named = MUTANTS[mutant]
    file, text = named.broken(Sources(copy))
    whole = file.read_text()
    file.write_text(text)
    try:
        found = _run(copy, named.tests)
    finally:
        file.write_text(whole)
    if found.status == 0 and not found.passed and found.skipped:
        pytest.skip(f"its tests are skipped here: {found.skipped[0]}")
    assert found.status != 0, f"SURVIVES {' '.join(named.tests)}"
    if found.status is not None:
        assert found.failed, f"DOES NOT RUN: {found.reason}\n{found.said}"
        assert not NONSENSE.search(found.why), f"IS NONSENSE: {found.why}"
    noticing = found.failed or named.tests
    whole_too = _run_whole(copy, noticing)
    assert whole_too.status == 0, f"FAILS WITHOUT IT TOO: {whole_too.reason}\n{whole_too.said}"
    record_property("noticed", f"{noticing[0].rpartition('/')[2]}{'' if found.failed else ' does not end'}")


@dataclass(frozen=True)
class Found:
    """What a run of tests came to: its `status` is None where it did not end in time."""

    status: int | None
    said: str = ""
    passed: int = 0
    skipped: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()  # in their own bodies
    why: str = ""  # the first of them did

    @property
    def reason(self) -> str:
        """The last line of its traceback."""
        return next(iter(re.findall(r"^E +(.+)$", self.said, re.MULTILINE)[::-1]), "it did not end")


def _run(tree: Path, tests: tuple[str, ...]) -> Found:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    env |= {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'bridges'}", "PYTHONDONTWRITEBYTECODE": "1"}
    report = tree.with_name(f"{tree.name}.xml")
    report.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n0",
        "-p",
        "no:cacheprovider",
        f"--timeout={LIMIT_S // 2}",
    ]
    command += ["--hypothesis-profile=mutants", f"--junitxml={report}", *tests]
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return Found(None, "it did not end")
    said = (done.stdout + done.stderr)[-3000:]
    if not report.exists():
        return Found(done.returncode, said)
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [(case, verdict) for case in cases for verdict in case.iter("failure")]
    return Found(
        done.returncode,
        said,
        passed=sum(not {"failure", "error", "skipped"} & {verdict.tag for verdict in case} for case in cases),
        skipped=tuple(verdict.get("message", "") for case in cases for verdict in case.iter("skipped")),
        failed=tuple(_node(case) for case, _ in failed),
        why=failed[0][1].get("message", "") if failed else "",
    )


@cache
def _run_whole(tree: Path, tests: tuple[str, ...]) -> Found:
    """Without a breakage: once for all that the same test notices."""
    return _run(tree, tests)


def _node(case: ElementTree.Element) -> str:
    """A test's name on the command line, with all cases of its parameters."""
    return f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name', '').partition('[')[0]}"
