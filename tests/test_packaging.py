"""The house: what the wheel installs, and what may be imported without what."""

from __future__ import annotations

import ast
import re
import subprocess
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.processes import ROOT, cli, python

FLOORS = ("bridges", "models", "agents", "envs")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    # What an earlier build left in the source tree would be packed too.
    config = out / "setup.cfg"
    config.write_text(f"[build]\nbuild_base = {out / 'build'}\n")
    # setuptools is installed with the development extra's build tool, so nothing is downloaded here.
    command = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(out), str(ROOT))
    done = python(*command, env={"DIST_EXTRA_CONFIG": str(config)})
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))


def test_wheel_puts_nothing_but_rtcontrol_at_the_top_level(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0] for n in names if ".dist-info/" not in n} == {"rtcontrol"}


def test_wheel_holds_every_module_and_data_file_of_the_tree(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("rtcontrol", *FLOORS):
        for path in (ROOT / folder).rglob("*"):
            shipped = path.suffix in {".py", ".typed", ".msg"} or bool({"zoo", "schemas", "page"} & {*path.parts})
            if path.is_file() and shipped and "__pycache__" not in path.parts:
                inside = path.relative_to(ROOT).as_posix()
                assert (inside if folder == "rtcontrol" else f"rtcontrol/{inside}") in names


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return python("-c", code, env=env)


def test_bridges_import_with_pyzmq_msgpack_and_pydantic_only() -> None:
    heavy = "torch ray transformers tokenizers safetensors llguidance jsonschema numpy gymnasium typer rich starlette"
    code = (
        "import sys\n"
        f"for name in {heavy.split()!r}: sys.modules[name] = None\n"
        "for name in ('models', 'agents', 'envs'): sys.modules['rtcontrol.' + name] = None\n"
        "import pkgutil, importlib, rtcontrol.bridges as b\n"
        "for m in pkgutil.walk_packages(b.__path__, 'rtcontrol.bridges.'): importlib.import_module(m.name)\n"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_source_tree_runs_uninstalled(tmp_path: Path) -> None:
    # -I hides an editable install's hooks only with -S; so the package is looked up from a bare path instead.
    done = cli("envs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "lander" in done.stdout


def test_every_file_of_the_top_floor_is_in_a_room() -> None:
    """Which room may import which is held by import-linter (`python .ci/typecheck`)."""
    assert {p.name for p in (ROOT / "rtcontrol").glob("*.py")} == {"__init__.py", "__main__.py"}


def test_no_two_classes_have_one_name() -> None:
    found = Counter(
        node.name
        for folder in ("rtcontrol", *FLOORS)
        for path in (ROOT / folder).rglob("*.py")
        if "standin" not in path.parts  # it has the names of what it stands in for
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert not [name for name, count in found.items() if count > 1]


def test_every_file_that_the_docs_name_is_there() -> None:
    named = re.compile(
        r"(?<![\w/.])(?:rtcontrol|envs|agents|models|bridges|tests|docs)/[\w/.-]*\.(?:py|md|json|toml)\b"
    )
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for name in named.findall(page.read_text("utf-8")):
            # Where a page is about tests, it may leave out their folder.
            assert (ROOT / name).exists() or (ROOT / "tests" / name).exists(), f"{page.name} names {name}"


def test_no_module_is_longer_than_its_role() -> None:
    long = {
        str(p.relative_to(ROOT)): n
        for folder in ("rtcontrol", *FLOORS)
        for p in (ROOT / folder).rglob("*.py")
        if (n := len(p.read_text("utf-8").splitlines())) > 400
    }
    assert not long
