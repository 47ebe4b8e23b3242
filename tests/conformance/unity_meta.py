"""`python -m tests.conformance.unity_meta`: write the `.meta` files of the Unity package.

Unity gives each file and folder a `.meta` with its guid. A package from git is read-only to it: what has none is
silently ignored. The guid is the md5 of package name and path, so that the same path has the same guid for ever.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path, PurePosixPath

PACKAGE = Path(__file__).resolve().parents[2] / "bridges" / "unity" / "com.rtcontrol.client"
TAIL = "  externalObjects: {}\n  userData: \n  assetBundleName: \n  assetBundleVariant: \n"
IMPORTERS = {
    ".asmdef": "AssemblyDefinitionImporter",
    ".json": "TextScriptImporter",
    ".md": "TextScriptImporter",
    ".txt": "TextScriptImporter",
    ".xml": "TextScriptImporter",
}
SCRIPT = (
    "MonoImporter:\n  externalObjects: {}\n  serializedVersion: 2\n  defaultReferences: []\n  executionOrder: 0\n"
    "  icon: {instanceID: 0}\n  userData: \n  assetBundleName: \n  assetBundleVariant: \n"
)


def guid(package: str, path: PurePosixPath) -> str:
    """The guid of a path relative to the package."""
    return hashlib.md5(f"{package}/{path}".encode(), usedforsecurity=False).hexdigest()


def assets(root: Path) -> list[PurePosixPath]:
    """What Unity imports of a package: all files and folders but hidden ones and those within `NAME~`."""
    found = []
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        ignored = any(part.startswith(".") or part.endswith("~") for part in inside.parts)
        if not ignored and path.suffix != ".meta":
            found.append(PurePosixPath(inside.as_posix()))
    return found


def meta(root: Path, path: PurePosixPath) -> str:
    """The `.meta` of an asset."""
    head = f"fileFormatVersion: 2\nguid: {guid(root.name, path)}\n"
    if (root / path).is_dir():
        return f"{head}folderAsset: yes\nDefaultImporter:\n{TAIL}"
    if path.suffix == ".cs":
        return head + SCRIPT
    importer = (
        "PackageManifestImporter" if str(path) == "package.json" else IMPORTERS.get(path.suffix, "DefaultImporter")
    )
    return f"{head}{importer}:\n{TAIL}"


def write(root: Path) -> list[str]:
    """Write missing and wrong ones, remove dangling ones; the names of what was changed."""
    wanted = {root / f"{path}.meta": meta(root, path) for path in assets(root)}
    changed = []
    for file, text in wanted.items():
        if not file.exists() or file.read_text("utf-8") != text:
            file.write_text(text, "utf-8", newline="\n")
            changed.append(file.relative_to(root).as_posix())
    for file in sorted(root.rglob("*.meta")):
        if file not in wanted:
            file.unlink()
            changed.append(f"{file.relative_to(root).as_posix()} (removed)")
    return changed


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE
    if not (root / "package.json").is_file():
        print(
            f"{root} holds no package.json. Run it in the source tree, or give the package's folder.", file=sys.stderr
        )
        return 2
    for name in write(root):
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
