"""`python -m tests.conformance.unity.lint`: what would break the Unity package at import, found without Unity.

Checked: `.meta` files (missing, dangling, duplicate guids, not as `meta.py` writes them), package.json (and the version
that the code tells), assembly definitions and their references, and C# that is above Unity 2021.3's or mcs' level, or
that the core may not use.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conformance.unity import meta

UNITY_ASSEMBLIES = {"UnityEngine.TestRunner", "UnityEditor.TestRunner"}
NEEDED = ("package.json", "README.md", "CHANGELOG.md", "LICENSE")
# What mcs does not know though it is C# 7.0 to 9, or what needs a compiler switch.
ABOVE = {
    "`??=`": r"\?\?=",
    "a switch expression": r"(\w|\))\s+switch\s*(\{|$)",
    "a using declaration": r"\busing\s+(var|[A-Z]\w*)\s+\w+\s*=",
    "a nullable context": r"#nullable",
    "an index from the end": r"\[\s*\^",
    "a range": r"\[[^\]\"]*\.\.[^\]\"]*\]",
    "a record": r"\brecord\s+(struct\s+|class\s+)?[A-Z]",
    "an init setter": r"\binit\s*;",
    "a target-typed new": r"=\s*new\s*\(\s*\)",
    "a file-scoped namespace": r"^\s*namespace\s+[\w.]+\s*;",
    "a guarded case": r"\bcase\b[^:]*\bwhen\b",
    "unsafe code": r"\bunsafe\b",
    "`is not`": r"\bis\s+not\b",
    "an async Main": r"\basync\s+\w+\s+Main\b",
}
CLIENT = "Runtime/Core/Session/RtClient.cs"  # tells the server its version
ENGINE = r"\bUnity(Engine|Editor)\b"


def lint(root: Path) -> list[str]:
    """The faults of a package folder, each as `path: fault`; empty where there are none."""
    return [*_metas(root), *_manifest(root), *_assemblies(root), *_sources(root)]


def _metas(root: Path) -> Iterator[str]:
    assets = meta.assets(root)
    wanted = {f"{path}.meta" for path in assets}
    guids: Counter[str] = Counter()
    for path in assets:
        file = root / f"{path}.meta"
        if not file.is_file():
            yield f"{path}: no .meta: Unity ignores it in a package from git"
            continue
        text = file.read_text("utf-8")
        found = re.search(r"^guid: ([0-9a-f]{32})$", text, re.MULTILINE)
        if found is None:
            yield f"{path}.meta: no guid"
            continue
        guids[found[1]] += 1
        if guids[found[1]] > 1:
            yield f"{path}.meta: guid {found[1]} is used twice"
        if text != meta.meta(root, path):
            yield f"{path}.meta: not as `python -m tests.conformance.unity.meta` writes it"
    for file in sorted(root.rglob("*.meta")):
        inside = file.relative_to(root).as_posix()
        if inside not in wanted:
            yield f"{inside}: dangling: there is no {inside.removesuffix('.meta')} that Unity imports"


def _manifest(root: Path) -> Iterator[str]:
    for name in NEEDED:
        if not (root / name).is_file():
            yield f"{name}: missing"
    manifest = _read(root / "package.json")
    if manifest is None:
        yield "package.json: no JSON object"
        return
    for name, shape in (("name", r"[a-z0-9-]+(\.[a-z0-9-]+)+"), ("version", r"\d+\.\d+\.\d+"), ("unity", r"\d{4}\.\d")):
        if not re.fullmatch(shape, str(manifest.get(name))):
            yield f"package.json: {name} is {manifest.get(name)!r}"
    if manifest.get("name") != root.name:
        yield f"package.json: name {manifest.get('name')!r} is not the folder's, {root.name!r}"
    for sample in manifest.get("samples", []):
        path = sample.get("path") if isinstance(sample, dict) else sample
        if not (root / str(path)).is_dir():
            yield f"package.json: no sample at {path!r}"
    code = root / CLIENT
    said = re.search(r'string Version = "([^"]*)"', code.read_text("utf-8")) if code.is_file() else None
    if said is None or said[1] != manifest.get("version"):
        yield f"{CLIENT}: Version is {said and said[1]!r}, not package.json's {manifest.get('version')!r}"
    log = root / "CHANGELOG.md"
    if log.is_file() and f"## {manifest.get('version')}" not in log.read_text("utf-8"):
        yield f"CHANGELOG.md: nothing about version {manifest.get('version')}"


def _assemblies(root: Path) -> Iterator[str]:
    definitions = {file: _read(file) for file in sorted(root.rglob("*.asmdef"))}
    names = Counter(str(d.get("name")) for d in definitions.values() if d)
    for file, definition in definitions.items():
        inside, folders = file.relative_to(root).as_posix(), file.relative_to(root).parts
        if definition is None:
            yield f"{inside}: no JSON object"
            continue
        if definition.get("name") != file.stem:
            yield f"{inside}: the name is {definition.get('name')!r}"
        if names[str(definition.get("name"))] > 1:
            yield f"{inside}: another assembly has the same name"
        for reference in definition.get("references", []):
            if reference not in names and reference not in UNITY_ASSEMBLIES:
                yield f"{inside}: no assembly {reference!r}"
        if "Core" in folders and definition.get("noEngineReferences") is not True:
            yield f"{inside}: the core must not see the engine (noEngineReferences)"
        if "Editor" in folders and definition.get("includePlatforms") != ["Editor"]:
            yield f"{inside}: an editor assembly must be for the platform Editor alone"
        if "Tests" in folders and "UNITY_INCLUDE_TESTS" not in definition.get("defineConstraints", []):
            yield f"{inside}: tests need the constraint UNITY_INCLUDE_TESTS"


def _sources(root: Path) -> Iterator[str]:
    homes = {file.parent for file in root.rglob("*.asmdef")}
    for file in sorted(root.rglob("*.cs")):
        inside = file.relative_to(root).as_posix()
        if "~" not in inside and homes.isdisjoint(file.parents):
            yield f"{inside}: in no assembly: Unity does not compile it in a package"
        code = _code(file.read_text("utf-8"))
        for number, line in enumerate(code.split("\n"), 1):
            for name, shape in ABOVE.items():
                if re.search(shape, line):
                    yield f"{inside}:{number}: {name} is above the language level"
            if "/Core/" in inside and re.search(ENGINE, line):
                yield f"{inside}:{number}: the core must not use the engine"


def _code(text: str) -> str:
    """Without comments and what stands in strings; lines keep their numbers."""
    blank = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
    return blank.sub(lambda m: '""' + "\n" * m[0].count("\n"), text)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else meta.PACKAGE
    if not root.is_dir():
        print(f"There is no {root}. Run it in the source tree, or give the package's folder.", file=sys.stderr)
        return 2
    faults = lint(root)
    for fault in faults:
        print(fault)
    print(f"{root.name}: {len(meta.assets(root))} assets, {len(faults)} faults")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
