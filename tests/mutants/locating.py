"""Each claim of safety and exactness breaks by a line: a mutant, which a test of the suite must notice.

The claims are the entries of this folder's `*.toml`: `claim`, `in` (the function, class or constant that is broken, in
whatever file it stands; `file` for what is not Python), `find` (a regular expression that matches once in it),
`replace` (as of `re.sub`), and the `tests` of which at least one must fail. They are one for each claim of safety or
exactness of README and docs.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PRODUCT = ("rtcontrol", "agents", "envs", "bridges", "models")


@dataclass(frozen=True)
class Place:
    """A part of a file: its text from `start` to `end`, counted in characters."""

    path: Path
    start: int
    end: int


class Sources:
    """The product's files under `root`, as they are when this is made."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._places: dict[str, list[Place]] = {}
        for top in PRODUCT:
            for path in sorted((root / top).rglob("*.py")):
                text = path.read_text()
                starts = [0]
                for line in text.split("\n"):
                    starts.append(starts[-1] + len(line) + 1)
                for name, node in _named(ast.parse(text), ""):
                    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
                    place = Place(path, starts[first - 1], min(starts[node.end_lineno or node.lineno], len(text)))
                    self._places.setdefault(name, []).append(place)

    def definition(self, name: str) -> Place:
        """Of `Class.method`, `function` or `CONSTANT`, where several modules have it of `module:Class.method`. Raises
        LookupError where there is none, or more than one."""
        module, _, qualified = name.rpartition(":")
        places = self._places.get(qualified, [])
        if module:
            places = [place for place in places if f"/{place.path.with_suffix('').as_posix()}".endswith(f"/{module}")]
        if len(places) != 1:
            where = ", ".join(str(place.path.relative_to(self._root)) for place in places)
            raise LookupError(f"{name} is defined {len(places)} times: {where or 'nowhere'}")
        return places[0]

    def file(self, name: str) -> Place:
        """All of the one file of that name, of the product or of docs/. Raises LookupError."""
        paths = [path for top in (*PRODUCT, "docs") for path in (self._root / top).rglob(name)]
        if len(paths) != 1:
            raise LookupError(f"there are {len(paths)} files {name}: {', '.join(map(str, paths)) or 'nowhere'}")
        return Place(paths[0], 0, len(paths[0].read_text()))


def _named(node: ast.AST, before: str) -> Iterator[tuple[str, ast.stmt]]:
    """Every definition within `node` by its qualified name, and what modules and classes assign by name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield before + child.name, child
            yield from _named(child, f"{before}{child.name}.")
            continue
        if isinstance(child, ast.Assign | ast.AnnAssign) and isinstance(node, ast.Module | ast.ClassDef):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            yield from ((before + target.id, child) for target in targets if isinstance(target, ast.Name))
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _named(child, before)


@dataclass(frozen=True)
class Mutant:
    """A breakage: what `find` matches in the definition `place`, or in the file `place`, becomes `replace`."""

    place: str
    is_file: bool
    find: str
    replace: str
    tests: tuple[str, ...]

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Mutant:
        is_file = "file" in fields
        place = fields["file" if is_file else "in"]
        return cls(place, is_file, fields["find"], fields["replace"], tuple(fields["tests"]))

    def broken(self, sources: Sources) -> tuple[Path, str]:
        """The file, and its text with the one replacement."""
        where = sources.file(self.place) if self.is_file else sources.definition(self.place)
        text = where.path.read_text()
        part = text[where.start : where.end]
        changed, count = re.subn(self.find, self.replace, part, flags=re.MULTILINE)
        assert count == 1, f"{self.place} has {count} times: {self.find}"
        assert changed != part, f"nothing of {self.place} changes"
        return where.path, text[: where.start] + changed + text[where.end :]


MUTANTS = {
    f"{path.stem}: {fields['claim']}": Mutant.of(fields)
    for path in sorted(Path(__file__).parent.glob("*.toml"))
    for fields in tomllib.loads(path.read_text()).get("mutant", [])
}
