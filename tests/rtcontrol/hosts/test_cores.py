"""The cores of hosts import no clock, thread, lock, file or socket."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HOSTS = Path(__file__).parents[3] / "rtcontrol/hosts"
ALLOWED = {"__future__", "collections", "dataclasses", "typing"}
CORES = ("protocol", "layered_core", "backup", "plans", "pool")


@pytest.mark.parametrize("name", CORES)
def test_core_imports_nothing_real(name: str) -> None:
    tree = ast.parse((HOSTS / f"{name}.py").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    ours = {module for module in modules if module and module.startswith("rtcontrol.")}
    cores = {f"rtcontrol.hosts.{core}" for core in CORES} | {"rtcontrol.models.call", "rtcontrol.models.errors"}
    assert ours <= cores and {str(module).partition(".")[0] for module in modules - ours} <= ALLOWED
