"""A working folder to begin with: a world, an agent, goals, tests (`rtcontrol new`)."""

from __future__ import annotations

import keyword
import sys
import tempfile
from importlib import resources
from importlib.metadata import packages_distributions
from pathlib import Path

from rtcontrol.models.errors import UserError

FILES = {
    "world.py.txt": "NAME.py",
    "agent.py.txt": "NAME_agent.py",
    "goals.yaml.txt": "goals.yaml",
    "test.py.txt": "test_NAME.py",
    "README.md.txt": "README.md",
}


def new(folder: Path) -> list[Path]:
    """Write it; its last part is the name. Gives its files. UserError for a name that is none or another module's, and
    for a folder that is there already; nothing is half-written."""
    name = folder.resolve().name
    if not (name.isidentifier() and name.islower() and not keyword.iskeyword(name)):
        raise UserError(
            f"{name!r} is no name for Python files.", "Give small letters, digits and _, as in `rtcontrol new my_game`."
        )
    remedy = "Give another name."
    if name in sys.stdlib_module_names or name in packages_distributions():
        raise UserError(f"{name} is a module of Python's: {name}.py would be imported in its place.", remedy)
    parts = resources.files("rtcontrol.run").joinpath("new_game")
    title = "".join(part.capitalize() for part in name.split("_"))
    try:
        if folder.exists() or folder.is_symlink():
            raise UserError(f"{folder} is there already.", remedy)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
            made = Path(beside, name)  # what holds it is nobody's but the user's; it is as readable as others
            made.mkdir()
            for source, target in FILES.items():
                text = parts.joinpath(source).read_text("utf-8").replace("TITLE", title).replace("NAME", name)
                (made / target.replace("NAME", name)).write_text(text, "utf-8")
            made.rename(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror or error}).", remedy) from None
    return [folder / target.replace("NAME", name) for target in FILES.values()]
