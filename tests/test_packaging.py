"""Tests of the wheels' contents, of imports without optional packages, of the project's structure and its files."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import zipfile
from collections import Counter
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
import yaml

import rtcontrol
import rtcontrol_client
from tests.helpers.processes import ROOT, python

FLOORS = ("models", "agents", "envs")
HOUSE = ("rtcontrol", *FLOORS, "bridges")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the wheels of both distributions, and return their paths by package name."""
    out = tmp_path_factory.mktemp("wheels")
    for tree in (ROOT, ROOT / "bridges"):
        # What an earlier build left in the source tree, or the other's, would be packed too.
        config = out / f"{tree.name}.cfg"
        config.write_text(f"[build]\nbuild_base = {out / tree.name}\n")
        # setuptools is installed with the development extra's build tool, so nothing is downloaded here.
        command = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(out), str(tree))
        done = python(*command, env={"DIST_EXTRA_CONFIG": str(config)})
        assert done.returncode == 0, done.stderr
    return {path.name.partition("-")[0]: path for path in out.glob("*.whl")}


@pytest.mark.parametrize("package", ["rtcontrol", "rtcontrol_client"])
def test_wheel_has_only_its_package_at_top_level(wheels: dict[str, Path], package: str) -> None:
    names = zipfile.ZipFile(wheels[package]).namelist()
    assert {n.split("/")[0] for n in names if ".dist-info/" not in n} == {package}
    assert any(n.endswith("/LICENSE") for n in names) and not any("recipes" in n for n in names)


@pytest.mark.parametrize(
    ("package", "folders"),
    [("rtcontrol", ("rtcontrol", *FLOORS)), ("rtcontrol_client", ("bridges/rtcontrol_client",))],
)
def test_wheel_has_every_module_and_data_file(wheels: dict[str, Path], package: str, folders: tuple[str, ...]) -> None:
    names = set(zipfile.ZipFile(wheels[package]).namelist())
    for folder in folders:
        for path in (ROOT / folder).rglob("*"):
            shipped = path.suffix in {".py", ".typed", ".msg", ".xml"}
            shipped = shipped or bool({"zoo", "schemas", "page", "examples"} & {*path.parts})
            if path.is_file() and shipped and not {"__pycache__", "recipes"} & {*path.parts}:
                inside = path.relative_to(ROOT).as_posix().removeprefix("bridges/")
                assert (f"rtcontrol/{inside}" if folder in FLOORS else inside) in names


def test_wheel_has_the_javascript_client(wheels: dict[str, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(wheels["rtcontrol"]) as wheel:
        wheel.extractall(tmp_path / "wheel")
    client = ROOT / "bridges" / "javascript" / "src"
    inside = tmp_path / "wheel" / "rtcontrol" / "gateway" / "javascript"
    assert {path.name: path.read_bytes() for path in inside.iterdir()} == {
        path.name: path.read_bytes() for path in client.iterdir()
    }
    code = "from rtcontrol.gateway.view import CLIENT; print(CLIENT)"
    for root, folder in ((tmp_path / "wheel", inside), (ROOT, client)):
        done = python("-c", code, env={"PYTHONPATH": f"{root}:{ROOT / 'bridges'}"}, cwd=tmp_path)
        assert Path(done.stdout.strip()).resolve() == folder, done.stderr


def test_static_checker_resolves_every_import_of_ours(tmp_path: Path) -> None:
    """Each `rtcontrol.*` import is a file at that path, so that editors resolve imports in the source tree."""
    folders = [str(ROOT / folder) for folder in ("rtcontrol", *FLOORS)]  # it follows no links
    rules = {"include": folders, "extraPaths": [str(ROOT), str(ROOT / "bridges")]}
    config = {**rules, "typeCheckingMode": "off", "reportMissingImports": "error", "pythonPath": sys.executable}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    done = python("-m", "basedpyright", "--outputjson", "-p", str(tmp_path), cwd=tmp_path, timeout=280)
    report = json.loads(done.stdout)
    missing = [entry["message"] for entry in report["generalDiagnostics"] if "rtcontrol" in entry["message"]]
    assert report["summary"]["filesAnalyzed"] > 300 and not missing


def test_both_distributions_have_the_same_version(wheels: dict[str, Path]) -> None:
    assert rtcontrol_client.__version__ == rtcontrol.__version__
    needed = metadata(wheels["rtcontrol"]).get_all("Requires-Dist") or []
    assert f"rtcontrol-client=={rtcontrol.__version__}" in needed
    assert {metadata(path)["Version"] for path in wheels.values()} == {rtcontrol.__version__}


def metadata(path: Path) -> Message:
    """A wheel's."""
    with zipfile.ZipFile(path) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
        return message_from_bytes(wheel.read(name))


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return python("-c", code, env=env)


def test_bridges_import_with_pyzmq_msgpack_and_pydantic_only() -> None:
    heavy = "torch ray transformers tokenizers safetensors llguidance jsonschema numpy gymnasium typer rich starlette"
    code = (
        "import sys\n"
        f"for name in {heavy.split()!r}: sys.modules[name] = None\n"
        "sys.modules['rtcontrol'] = None\n"
        "import pkgutil, importlib, rtcontrol_client as b\n"
        "names = {m.name for m in pkgutil.walk_packages(b.__path__, 'rtcontrol_client.')}\n"
        "for name in names - {'rtcontrol_client.ros2.node'}: importlib.import_module(name)\n"
    )
    done = run(code)  # `node` alone needs rclpy
    assert done.returncode == 0, done.stderr


def test_viewer_and_command_line_start_without_torch() -> None:
    done = run("import sys; sys.modules['torch'] = None; import rtcontrol.gateway.view, rtcontrol.cli.app")
    assert done.returncode == 0, done.stderr


def test_package_is_imported_next_to_a_clone(tmp_path: Path) -> None:
    # A clone's folder is named rtcontrol: to Python a namespace package, which comes before an import hook.
    (tmp_path / "rtcontrol" / "docs").mkdir(parents=True)
    done = python("-c", "import rtcontrol; print(rtcontrol.__file__)", cwd=tmp_path)
    assert done.stdout.strip() == rtcontrol.__file__, done.stderr


def test_every_top_level_module_is_in_a_package() -> None:
    """Every module is in a package, so that import-linter (`lint-imports`) checks its imports."""
    assert {p.name for p in (ROOT / "rtcontrol").glob("*.py")} == {
        "__init__.py",
        "__main__.py",
        "records.py",
        "settings.py",
    }


def test_class_names_are_unique() -> None:
    # A stand-in has the names of what it stands in for; the events and actions of a core are read with that core.
    apart = re.compile(r"(\w+_)?(core|events)$|records$|recipes|standin")
    paths = [p for f in HOUSE for p in (ROOT / f).rglob("*.py") if not any(map(apart.match, (p.stem, *p.parts)))]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    found = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert not [name for name, count in found.items() if count > 1]


def test_files_named_by_the_docs_exist() -> None:
    named = re.compile(
        r"(?<![\w/.])(?:rtcontrol|envs|agents|models|bridges|tests|docs)/[\w/.-]*\.(?:py|md|json|toml)\b"
    )
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for name in named.findall(page.read_text("utf-8")):
            # Where a page is about tests, it may leave out their folder.
            assert (ROOT / name).exists() or (ROOT / "tests" / name).exists(), f"{page.name} names {name}"


def test_no_package_has_more_lines_than_allowed() -> None:
    """The lines of a package only fall; a commit that raises a number in `.ci/budget.json` gives the reason there."""
    budget: dict[str, int] = json.loads((ROOT / ".ci" / "budget.json").read_text("utf-8"))["lines"]
    lines = {room: sum(len(p.read_text("utf-8").splitlines()) for p in (ROOT / room).rglob("*.py")) for room in budget}
    assert not {room: (lines[room], most) for room, most in budget.items() if lines[room] > most}


# Files for contributors: issue forms, CI, hooks and the dev container.


GITHUB = ROOT / ".github"
SCHEMA = ("check_jsonschema", "--builtin-schema")
COMMANDS = [
    (*SCHEMA, "vendor.github-workflows", ".github/workflows/ci.yml"),
    (*SCHEMA, "vendor.github-issue-forms", ".github/ISSUE_TEMPLATE/bug.yml", ".github/ISSUE_TEMPLATE/feature.yml"),
    (*SCHEMA, "vendor.github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
    ("pre_commit", "validate-config", ".pre-commit-config.yaml"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[-1])
def test_project_file_matches_its_schema(command: tuple[str, ...]) -> None:
    done = python("-m", *command, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_hook_runs_a_command_of_ci() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["id"] for hook in hooks if " ".join(hook["entry"].split()[:1]) not in ci] == []


def test_code_owners_name_paths_that_exist() -> None:
    lines = (GITHUB / "CODEOWNERS").read_text().splitlines()
    paths = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert [path for path in paths if path != "*" and not (ROOT / path.strip("/")).exists()] == []


def test_dev_container_installs_the_packages_of_readme() -> None:
    command = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())["postCreateCommand"]
    packages = re.search(r"torch==\S+ -e \./bridges -e '\.\[dev\]'", (ROOT / "README.md").read_text())
    assert packages is not None
    assert packages[0] in command


def _narrows_a_type(test: ast.expr) -> bool:
    """Return whether an asserted expression only shows the type checker the type of a value."""
    if isinstance(test, ast.BoolOp):
        return isinstance(test.op, ast.And) and all(map(_narrows_a_type, test.values))
    if isinstance(test, ast.Call):
        return isinstance(test.func, ast.Name) and test.func.id == "isinstance"
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot)


def test_no_check_is_lost_without_assertions() -> None:
    # `python -O` removes assertions, so they may only narrow types.
    checks = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in HOUSE
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert) and not _narrows_a_type(node.test)
    ]
    assert not checks


OPTIMIZED = """
import json, sys, typer
from pydantic import BaseModel
from rtcontrol.cli.app import app
from rtcontrol.run import assembly
sys.path.insert(0, sys.argv[1])
import tools_of_a_robot
from rtcontrol.agents import Tools

def texts(command, name):
    yield name, command.help
    for inner in getattr(command, "list_commands", lambda context: ())(None):
        yield from texts(command.get_command(None, inner), f"{name} {inner}")

tools = [assembly.load_agent(name).tools for name in ("lander", "driver", "paddle")]
tools.append(Tools([tools_of_a_robot.drive, tools_of_a_robot.Stop]))
print(json.dumps([dict(texts(typer.main.get_command(app), "")), [each.openai() for each in tools]]))
"""


@pytest.mark.integration
def test_help_and_tools_are_the_same_without_docstrings(tmp_path: Path) -> None:
    (tmp_path / "tools_of_a_robot.py").write_text(
        "from pydantic import BaseModel\n\ndef drive(way: bool) -> None:\n    '''Drive a step.\n\n    Not far.'''\n\n"
        "class Stop(BaseModel):\n    '''Stop at once.'''\n    hard: bool\n"
    )
    plain, optimized = (python(*flags, "-c", OPTIMIZED, str(tmp_path)) for flags in ((), ("-OO",)))
    assert plain.returncode == optimized.returncode == 0, optimized.stderr
    assert json.loads(optimized.stdout) == json.loads(plain.stdout)
    assert "Drive a step." in plain.stdout and all(json.loads(plain.stdout)[0].values())
