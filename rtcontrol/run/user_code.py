"""The user's own code while it is called for long: people are told which function of theirs does not return."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType

from rtcontrol.loop import errors
from rtcontrol.loop.errors import is_ours, is_user_code, place
from rtcontrol.models.errors import UserError

AFTER_S = 10.0


@contextmanager
def watched(say: Callable[[str], None], after_s: float = AFTER_S) -> Iterator[None]:
    """Meanwhile, `say` (from another thread) each call of this thread into code outside rtcontrol and installed
    packages that lasts `after_s` and longer: the function, and the file and line at which it is. A generator is one
    call however often it yields, and is not told of."""
    caller, ended = threading.get_ident(), threading.Event()

    def watch() -> None:
        called: FrameType | None = None
        since, told = time.monotonic(), False
        while not ended.wait(after_s / 10):
            if (found := _called(sys._current_frames().get(caller))) is not called:
                called, since, told = found, time.monotonic(), False
            elif called is not None and not told and time.monotonic() - since >= after_s:
                told = True
                say(f"{place(called, called.f_lineno)}: {called.f_code.co_name}() has not returned for {after_s:g} s.")

    thread = threading.Thread(target=watch, name="watched", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _called(innermost: FrameType | None) -> FrameType | None:
    """The user's function that rtcontrol called; None while none is under way."""
    found, own = None, None
    while innermost is not None:
        if is_user_code(innermost):
            own = innermost
        elif own is not None and is_ours(innermost):
            found = None if own.f_code.co_flags & inspect.CO_GENERATOR else own
        innermost = innermost.f_back
    return found


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
