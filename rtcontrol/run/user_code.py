"""The user's own Python files: loaded once, and what their errors say."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import sysconfig
import threading
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from rtcontrol.loop import errors
from rtcontrol.models.errors import UserError

_loaded: dict[Path, ModuleType] = {}


def load_module(name: str, option: str) -> ModuleType:
    """The module of a Python file: run once, however often it is named, on the thread that names it first. UserError
    when it does not run."""
    path = Path(name).resolve()
    if not path.is_file():
        raise UserError(f"{option} {name}: there is no such file.", "Give the path of a Python file.")
    if path in _loaded:
        return _loaded[path]
    # A name of its own: a file called json.py must not stand in for the module of that name.
    title = f"rtcontrol_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(title, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        # Its neighbours can be imported, as when Python runs it; but a json.py there must not stand in for the
        # standard library's in a process that is started from here.
        library = sysconfig.get_path("purelib")
        sys.path.insert(sys.path.index(library) if library in sys.path else len(sys.path), str(path.parent))
    sys.modules[title] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[title]
        if isinstance(error, UserError) or not isinstance(error, Exception | SystemExit):
            raise
        remedy = f"Run `python {name}` to see where."
        if threading.current_thread() is not threading.main_thread():
            remedy = f"`python {name}` runs it on the main thread, and this is another one: load it from there first."
        raise UserError(f"{option} {name} cannot be loaded ({reason(error)}).", remedy) from error
    _loaded[path] = module
    return module


def reason(error: BaseException) -> str:
    """What an error of the user's code says, and the line of theirs that it comes from."""
    # Where nothing of theirs ran, as in a file that cannot be parsed, the text tells the line.
    place = None if isinstance(error, SyntaxError) else errors.where(error)
    return errors.text(error) if place is None or place.startswith("<") else f"{errors.text(error)}, {place}"


def remedy_of(error: BaseException) -> str:
    """What to do about an error of a world's."""
    if errors.in_package(error):
        return "The package that it comes from fails there: choose another world, or another version of the package."
    return "Correct it there."


def contents(files: Iterable[str | None]) -> dict[str, str]:
    """Return a digest of each of the files that are on this disk, by its name."""
    texts = {name: Path(name).read_bytes() for name in files if name is not None and Path(name).is_file()}
    return {name: hashlib.sha256(text).hexdigest()[:16] for name, text in texts.items()}
