"""Each mutant breaks one thing of the product, and names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.helpers.processes import ROOT
from tests.mutants.locating import MUTANTS, Sources


def test_every_mutant_matches_once_and_names_tests_that_exist() -> None:
    count = sum(path.read_text().count("[[mutant]]") for path in Path(__file__).parent.glob("*.toml"))
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


def _exists(test: str) -> bool:
    """A test's function may be given a case of its parameters, which is not looked for."""
    file, _, name = test.partition("::")
    if not (ROOT / file).is_file():
        return False
    function = name.partition("[")[0].rpartition("::")[2]
    return re.search(rf"^ *def {re.escape(function)}\(", (ROOT / file).read_text(), re.MULTILINE) is not None
