"""`python -m tests.simulation.mutants`: break each law in the cores in turn, and check that a seed detects the change.

A breakage is an entry of mutants.toml. It is imported broken, in a process of its own: no file changes.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType

SEEDS = 1500  # at most so many are tried


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutant of a module, in which `replace` replaces the match of `find`. The `seed` that detected it before is
    tried first."""

    claim: str
    module: str
    find: str
    replace: str
    seed: int

    def broken(self) -> tuple[ModuleSpec, CodeType]:
        """Return the broken module. Raises ValueError where `find` does not match once."""
        spec = importlib.util.find_spec(self.module)
        assert spec is not None and spec.origin is not None
        source = Path(spec.origin).read_text()
        changed, count = re.subn(self.find, self.replace, source, flags=re.MULTILINE)
        if count != 1 or changed == source:
            raise ValueError(f"{self.claim}: {self.module} has {count} times {self.find}")
        return spec, compile(changed, spec.origin, "exec")


def mutants() -> list[Mutant]:
    """Return the mutants of mutants.toml."""
    entries = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text())["mutant"]
    return [Mutant(e["claim"], e["in"], e["find"], e["replace"], e.get("seed", 0)) for e in entries]


def hunt(mutant: Mutant) -> None:
    """Run seeds until one detects the mutant, and print this seed and the violation."""
    spec, code = mutant.broken()
    module = sys.modules[mutant.module] = importlib.util.module_from_spec(spec)
    exec(code, module.__dict__)
    from rtcontrol.drill.simulation.campaign import run_seeds
    from tests.simulation.crowd import crowds

    run = crowds if mutant.module.startswith("rtcontrol.serve.crowd") else run_seeds
    for seed in (mutant.seed, *range(SEEDS)):
        for failure in run([seed]).failures.values():
            print(f"seed {seed}: {failure.partition(': ')[2].splitlines()[0][:150]}")
            return


def found_by(i: int) -> str:
    """Return the violation that detects the i-th mutant, and its seed; empty if no seed does."""
    command = [sys.executable, "-m", "tests.simulation.mutants", str(i)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    if sys.argv[1:]:
        hunt(mutants()[int(sys.argv[1])])
    else:
        results = [(mutant.claim, found_by(i)) for i, mutant in enumerate(mutants())]
        for claim, result in results:
            print(f"{claim}\n    {result or 'SURVIVES'}", flush=True)
        print(f"{len(results)} mutants, {sum(not result for _, result in results)} survive")
