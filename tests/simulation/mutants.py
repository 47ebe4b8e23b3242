"""`python -m tests.simulation.mutants`: break the cores by one law after the other, and see a seed find each.

A breakage is an entry of mutants.toml. It is read by an import hook, in a process of its own: no file changes.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
SEEDS = 1500  # at most so many are tried


@dataclass(frozen=True, slots=True)
class Mutant:
    """What `find` matches in the module becomes `replace`. `seed` found it before: it is tried first."""

    claim: str
    module: str
    find: str
    replace: str
    seed: int

    def broken(self, source: str) -> str:
        """Return the source with the one replacement. Raises ValueError where it does not match once."""
        changed, count = re.subn(self.find, self.replace, source, flags=re.MULTILINE)
        if count != 1 or changed == source:
            raise ValueError(f"{self.claim}: {self.module} has {count} times {self.find}")
        return changed


def mutants() -> list[Mutant]:
    """Return those of mutants.toml."""
    entries = tomllib.loads((HERE / "mutants.toml").read_text())["mutant"]
    return [Mutant(e["claim"], e["in"], e["find"], e["replace"], e.get("seed", 0)) for e in entries]


class Breaker(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the mutant's module broken."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._path = ""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None:
            return None
        self._path = spec.origin
        return importlib.util.spec_from_loader(name, self, origin=spec.origin)

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        source = self._mutant.broken(Path(self._path).read_text())
        exec(compile(source, self._path, "exec"), module.__dict__)


def hunt(mutant: Mutant, seeds: int) -> int:
    """Run seeds until one finds the mutant. Return 1 where one does."""
    sys.meta_path.insert(0, Breaker(mutant))
    from rtcontrol.drill.simulation.campaign import campaign
    from tests.simulation.crowd import crowds

    run = crowds if mutant.module.startswith("rtcontrol.serve.crowd") else campaign
    for seed in (mutant.seed, *range(seeds)):
        for failure in run([seed]).failures.values():
            print(failure.partition(": ")[2].splitlines()[0][:150])
            print(seed)
            return 1
    return 0


def found_by(i: int, seeds: int = SEEDS) -> str | None:
    """Return what finds the i-th mutant, and its seed; None where no seed does."""
    command = [sys.executable, "-m", "tests.simulation.mutants", "--one", str(i), "--seeds", str(seeds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode == 0:
        return None
    lines = done.stdout.splitlines()
    if len(lines) != 2:
        raise RuntimeError(done.stderr[-2000:])
    return f"seed {lines[1]}: {lines[0]}"


def main() -> int:
    """Return how many survive."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--one", type=int)
    parser.add_argument("--from", type=int, default=0, dest="first", help="begin with this one")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    given = parser.parse_args()
    if given.one is not None:
        return hunt(mutants()[given.one], given.seeds)
    survive = 0
    for i, mutant in [*enumerate(mutants())][given.first :]:
        found = found_by(i, given.seeds)
        survive += found is None
        print(f"{mutant.claim}\n    {found or 'SURVIVES'}", flush=True)
    print(f"{len(mutants())} mutants, {survive} survive")
    return survive


if __name__ == "__main__":
    sys.exit(main())
