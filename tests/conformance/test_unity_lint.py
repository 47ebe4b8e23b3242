"""The package as it is has no faults, and each fault that would break its import is found."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.unity import lint, meta


@pytest.fixture
def package(tmp_path: Path) -> Path:
    copy = tmp_path / meta.PACKAGE.name
    shutil.copytree(meta.PACKAGE, copy)
    return copy


def test_shipped_package_has_no_faults() -> None:
    assert lint.lint(meta.PACKAGE) == []
    assert len(meta.assets(meta.PACKAGE)) > 40


def test_metas_are_the_same_wherever_they_are_written(package: Path) -> None:
    before = {p.relative_to(package): p.read_bytes() for p in package.rglob("*.meta")}
    for file in package.rglob("*.meta"):
        file.unlink()
    assert len(meta.write(package)) == len(before)
    assert {p.relative_to(package): p.read_bytes() for p in package.rglob("*.meta")} == before
    assert meta.write(package) == []
    assert not [p for p in before if "~" in str(p)]


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        text = (root / name).read_text("utf-8")
        assert old in text
        (root / name).write_text(text.replace(old, new, 1), "utf-8")

    return change


def add(code: str) -> Callable[[Path], None]:
    return edit("Runtime/Core/Wire/RtLimits.cs", "public static class", f"{code}\n    public static class")


def same_guid(root: Path) -> None:
    other = (root / "README.md.meta").read_text("utf-8")
    found = re.search("guid: .*", other)
    assert found
    file = root / "LICENSE.meta"
    file.write_text(re.sub("guid: .*", found[0], file.read_text("utf-8")), "utf-8")


CORE = "Runtime/Core/RtControl.Core.asmdef"
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing meta": (lambda r: (r / "Runtime/Core/Wire/Codec.cs.meta").unlink(), "Codec.cs: no .meta"),
    "folder without meta": (lambda r: (r / "Runtime/Core/Tools.meta").unlink(), "Runtime/Core/Tools: no .meta"),
    "new file": (lambda r: (r / "Editor/New.cs").write_text("class New {}"), "Editor/New.cs: no .meta"),
    "dangling meta": (lambda r: (r / "Gone.cs.meta").write_text("guid: x"), "Gone.cs.meta: dangling"),
    "meta of a hidden folder": (lambda r: (r / "Samples~.meta").write_text("guid: x"), "Samples~.meta: dangling"),
    "same guid": (same_guid, "is used twice"),
    "no guid": (edit("LICENSE.meta", "guid: ", "gid: "), "LICENSE.meta: no guid"),
    "edited meta": (edit("LICENSE.meta", "userData: ", "userData: x"), "not as"),
    "broken manifest": (lambda r: (r / "package.json").write_text("{"), "package.json: no JSON object"),
    "version in the code": (edit("Runtime/Core/Session/RtClient.cs", '"0.1.0"', '"0.1.1"'), "Version is '0.1.1'"),
    "sample that is no map": (edit("package.json", '"samples": [', '"samples": ["x", '), "no sample at 'x'"),
    "version": (edit("package.json", '"0.1.0"', '"0.1"'), "package.json: version is '0.1'"),
    "changelog": (edit("package.json", '"0.1.0"', '"0.2.0"'), "nothing about version 0.2.0"),
    "name": (edit("package.json", "com.rtcontrol.client", "com.rtcontrol.other"), "is not the folder's"),
    "sample": (edit("package.json", "Samples~/Rover", "Samples~/Boat"), "no sample at 'Samples~/Boat'"),
    "no license": (lambda r: (r / "LICENSE").unlink(), "LICENSE: missing"),
    "reference": (
        edit("Editor/RtControl.Editor.asmdef", '"RtControl.Core"', '"RtControl.Cor"'),
        "no assembly 'RtControl.Cor'",
    ),
    "assembly name": (edit(CORE, '"name": "RtControl.Core"', '"name": "Core"'), "the name is 'Core'"),
    "engine in the core's assembly": (edit(CORE, "true\n}", "false\n}"), "must not see the engine"),
    "editor assembly for all": (edit("Editor/RtControl.Editor.asmdef", '["Editor"]', "[]"), "platform Editor alone"),
    "tests in builds": (
        edit("Tests/Runtime/RtControl.Tests.asmdef", '"UNITY_INCLUDE_TESTS"', ""),
        "UNITY_INCLUDE_TESTS",
    ),
    "file in no assembly": (lambda r: (r / "Stray.cs").write_text(""), "Stray.cs: in no assembly"),
    "engine in the core": (add("// fine: UnityEngine\n    using UnityEngine;"), "must not use the engine"),
    "null assignment": (add("x ??= y;"), "`??=`"),
    "switch expression": (add("var a = b switch { _ => 1 };"), "a switch expression"),
    "using declaration": (add("using var a = B();"), "a using declaration"),
    "range": (add("var a = b[1..2];"), "a range"),
    "index from the end": (add("var a = b[^1];"), "an index from the end"),
    "record": (add("record Point(int X);"), "a record"),
    "nullable": (add("#nullable enable"), "a nullable context"),
    "unsafe": (add("unsafe void A() {}"), "unsafe code"),
    "target-typed new": (add("List<int> a = new();"), "a target-typed new"),
    "guarded case": (add("case int i when i > 1:"), "a guarded case"),
    "pattern": (add("if (a is not null) {}"), "`is not`"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found(package: Path, fault: str) -> None:
    breaks, told = FAULTS[fault]
    breaks(package)
    assert any(told in found for found in lint.lint(package)), lint.lint(package)


@pytest.mark.parametrize("folder", ["Core", "Tests", "Editor"])
def test_folders_above_the_package_mean_nothing(package: Path, tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    assert lint.lint(package.rename(tmp_path / folder / package.name)) == []


def test_words_in_strings_and_comments_are_no_code(package: Path) -> None:
    add('// x ??= y; a switch {\n    /* unsafe\n UnityEngine */ const string A = "[^1] ??= UnityEngine";')(package)
    assert lint.lint(package) == []


def test_command_lists_faults_and_tells_by_its_exit_status(package: Path) -> None:
    command = [sys.executable, "-m", "tests.conformance.unity.lint"]
    assert subprocess.run([*command, str(package)], check=False).returncode == 0
    (package / "LICENSE.meta").unlink()
    done = subprocess.run([*command, str(package)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "LICENSE: no .meta" in done.stdout
    nowhere = subprocess.run([*command, str(package / "none")], capture_output=True, text=True, check=False)
    assert (nowhere.returncode, "give the package's folder" in nowhere.stderr) == (2, True)
