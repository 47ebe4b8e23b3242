"""The user's own code while it is called for long: people are told which function of theirs does not return."""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rtcontrol.loop.errors import is_ours, is_own, place

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
        if is_own(innermost):
            own = innermost
        elif own is not None and is_ours(innermost):
            found = None if own.f_code.co_flags & inspect.CO_GENERATOR else own
        innermost = innermost.f_back
    return found
