"""What cores import: nothing with a thread, a socket, a file or a clock, and few files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.helpers.processes import ROOT

CORES = ["loop/core", "loop/actuator_core", "serve/session_core"]
CORES += [f"hosts/{name}" for name in ("protocol", "layered_core", "backup", "plans", "pool")]
REAL = {
    *("threading", "socket", "time", "os", "gc", "random", "secrets"),
    *("select", "queue", "signal", "subprocess", "zmq", "asyncio"),
}


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports, with the imported names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def files_of(name: str) -> set[Path]:
    """Return our files that are loaded with a module: the module itself, and its parent packages. The top packages look
    up what is requested of them, and load nothing of ours by themselves."""
    top, *parts = name.split(".")
    folder = ROOT / "bridges" / top if top == "rtcontrol_client" else ROOT / top
    places = [folder.joinpath(*parts[:i]) for i in range(1, len(parts) + 1)]
    return {file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()}


@pytest.mark.parametrize("name", CORES)
def test_core_imports_few_files_and_nothing_real(name: str) -> None:
    core = ROOT / f"rtcontrol/{name}.py"
    waiting, ours = [core], set[Path]()
    while waiting:
        path = waiting.pop()
        ours.add(path)
        names = imports(path)
        waiting += {file for name in names for file in files_of(name)} - ours
        assert path.parent.name == "models" or not {name.partition(".")[0] for name in names} & REAL, path
    assert len(ours - {core}) <= 20, sorted(map(str, ours))
