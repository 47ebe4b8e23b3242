"""Pack and install the npm package, and run Node programs that use it."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.bridges.program import Program
from tests.helpers.processes import ROOT

SOURCE = ROOT / "bridges" / "javascript"
HERE = Path(__file__).resolve().parent
BESIDE = {"ws": "8.18.3", "typescript": "5.9.3"}
SCRIPTS = ("check_vectors.mjs", "driver.mjs", "vectors.mjs")


@cache
def npm(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["npm", *arguments], cwd=folder, capture_output=True, text=True, timeout=240, check=False)


def packed(folder: Path) -> tuple[Path, list[str]]:
    """Pack the package as for publishing; return the archive and its files."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm: apt-get install npm")
    shutil.copytree(SOURCE, folder / "source")
    done = npm("pack", "--json", "--pack-destination", str(folder), folder=folder / "source")
    assert done.returncode == 0, done.stderr
    (reported,) = json.loads(done.stdout)
    return folder / reported["filename"], [file["path"] for file in reported["files"]]


def installed(folder: Path) -> Path:
    """Return a program's folder with the package and the other packages that the tests need."""
    tarball, _ = packed(folder)
    home = folder / "program"
    home.mkdir()
    wanted = {**BESIDE, "rtcontrol-client": f"file:{tarball}"}
    (home / "package.json").write_text(json.dumps({"private": True, "type": "module", "dependencies": wanted}))
    try:
        done = npm("install", "--no-audit", "--no-fund", "--prefer-offline", folder=home)
    except subprocess.TimeoutExpired:
        pytest.skip("npm install took longer than 240 s")
    if done.returncode:
        pytest.skip(f"npm cannot install {', '.join(BESIDE)}: {done.stderr.strip()[-300:]}")
    for script in SCRIPTS:
        shutil.copy(HERE / script, home)
    return home


class NodeClient(Program):
    """A process of `driver.mjs` in a folder with the installed package."""

    begins = '{"event"'

    def __init__(self, home: Path, url: str, *flags: str, **options: Any) -> None:
        self._errors = (home / f"errors-{id(self)}.txt").open("w+")
        command = ["node", *flags, "--no-warnings", "driver.mjs", url, json.dumps(options)]
        super().__init__(command, cwd=home, stdin=subprocess.PIPE, stderr=self._errors)

    def do(self, script: str) -> Any:
        """Run a script in the program and return its result."""
        self.say(script)
        return self.event("did")["value"]

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()
