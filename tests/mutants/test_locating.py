"""A mutant is found by what it breaks, wherever that stands and however its variables are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.locating import Sources
from tests.mutants.test_mutants import Mutant

CODE = """
LIMIT_MS = 20


class Gate:
    @property
    def shut(self) -> bool:
        waited = self._waited()
        return waited > LIMIT_MS or waited < 0
"""
BREAK = Mutant("Gate.shut", False, r"return \w+ > LIMIT_MS", "return False", ())


def tree(root: Path, **files: str) -> Sources:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text)
    return Sources(root)


def test_a_moved_file_and_a_renamed_variable_hide_nothing(tmp_path: Path) -> None:
    moved = tree(
        tmp_path, models__deep__down__gates="import os\n" + CODE.replace("waited =", "w =").replace("waited ", "w ")
    )
    path, text = BREAK.broken(moved)
    assert path == tmp_path / "models/deep/down/gates.py"
    assert text.startswith("import os\n\nLIMIT_MS = 20\n") and text.endswith("return False or w < 0\n")


def test_a_constant_is_found_by_its_name(tmp_path: Path) -> None:
    _, text = Mutant("LIMIT_MS", False, r"= \d+", "= 90", ()).broken(tree(tmp_path, models__gates=CODE))
    assert text == CODE.replace("20", "90")


def test_a_definition_that_stands_twice_is_refused_until_its_module_is_named(tmp_path: Path) -> None:
    both = tree(tmp_path, models__gates=CODE, agents__gates=CODE, rtcontrol__doors=CODE)
    with pytest.raises(
        LookupError, match="Gate.shut is defined 3 times: rtcontrol/doors.py, agents/gates.py, models/gates.py"
    ):
        BREAK.broken(both)
    for module in ("doors", "agents/gates"):
        path, _ = Mutant(f"{module}:Gate.shut", False, BREAK.find, BREAK.replace, ()).broken(both)
        assert path.with_suffix("").as_posix().endswith(module)
    with pytest.raises(LookupError, match="oors:Gate.shut is defined 0 times: nowhere"):
        Mutant("oors:Gate.shut", False, BREAK.find, BREAK.replace, ()).broken(both)


@pytest.mark.parametrize(("find", "count"), [(r"waited [<>]", 2), ("elsewhere", 0)])
def test_a_pattern_that_does_not_match_once_is_refused(tmp_path: Path, find: str, count: int) -> None:
    with pytest.raises(AssertionError, match=f"Gate.shut has {count} times"):
        Mutant("Gate.shut", False, find, "", ()).broken(tree(tmp_path, models__gates=CODE))


def test_a_breakage_that_changes_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nothing of Gate.shut changes"):
        Mutant("Gate.shut", False, "LIMIT_MS", "LIMIT_MS", ()).broken(tree(tmp_path, models__gates=CODE))
