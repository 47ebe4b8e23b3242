"""Lists the packages, so that a new folder needs no line; all else stands in pyproject.toml."""

from collections.abc import Iterator
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
FLOORS = ("agents", "envs", "models")  # installed as subpackages of `rtcontrol`


def packages(folder: Path, name: str) -> Iterator[str]:
    """The folder's, and those of the folders in it."""
    yield name
    for inner in sorted(folder.iterdir()):
        if (inner / "__init__.py").is_file():
            yield from packages(inner, f"{name}.{inner.name}")


listed = [*packages(ROOT / "rtcontrol", "rtcontrol")]
for floor in FLOORS:
    listed += packages(ROOT / floor, f"rtcontrol.{floor}")
listed.append("rtcontrol.gateway.javascript")  # no modules of Python's, but files of its page
setup(packages=listed)
