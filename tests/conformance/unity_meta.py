"""Write the `.meta` files of the Unity package: `python -m tests.conformance.unity_meta`.

Unity gives each file and folder a `.meta` with its guid. A package from git is read-only to it: what has none is
silently ignored. The guid is the md5 of package name and path, so that the same path has the same guid for ever.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "bridges" / "unity" / "com.rtcontrol.client"
TAIL = "  externalObjects: {}\n  userData: \n  assetBundleName: \n  assetBundleVariant: \n"
IMPORTERS = {".asmdef": "AssemblyDefinition", **dict.fromkeys((".json", ".md", ".txt", ".xml"), "TextScript")}
SCRIPT = (
    "MonoImporter:\n  externalObjects: {}\n  serializedVersion: 2\n  defaultReferences: []\n  executionOrder: 0\n"
    "  icon: {instanceID: 0}\n  userData: \n  assetBundleName: \n  assetBundleVariant: \n"
)


def metas() -> dict[str, str]:
    """Return the text of each `.meta` file: for all files and folders except hidden ones and those within `NAME~`."""
    result = {}
    for path in sorted(PACKAGE.rglob("*")):
        inside = path.relative_to(PACKAGE)
        if path.suffix != ".meta" and not any(p.startswith(".") or p.endswith("~") for p in inside.parts):
            result[f"{inside.as_posix()}.meta"] = _meta(path, inside.as_posix())
    return result


def _meta(path: Path, inside: str) -> str:
    guid = hashlib.md5(f"{PACKAGE.name}/{inside}".encode(), usedforsecurity=False).hexdigest()
    head = f"fileFormatVersion: 2\nguid: {guid}\n"
    if path.is_dir():
        return f"{head}folderAsset: yes\nDefaultImporter:\n{TAIL}"
    if path.suffix == ".cs":
        return head + SCRIPT
    importer = "PackageManifest" if inside == "package.json" else IMPORTERS.get(path.suffix, "Default")
    return f"{head}{importer}Importer:\n{TAIL}"


if __name__ == "__main__":
    for name, text in metas().items():
        (PACKAGE / name).write_text(text, "utf-8", newline="\n")
