"""What a server's sessions share: their core under its lock, decoders, interpreters and sums."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.loop.sampling import PauseWatch
from rtcontrol.run.interpreting import Interpreters
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.runs import Totals
from rtcontrol.serve.session_core import SessionCore

P = ParamSpec("P")
T = TypeVar("T")
OPENING_AT_ONCE = 2  # sessions whose schemas are compiled and decoders opened


class SessionOwner:
    """The core under its lock, and what its sessions' threads share."""

    core: SessionCore

    def __init__(self, options: ServeOptions, pool: DecoderPool, watch: PauseWatch, say: Callable[[str], None]) -> None:
        self.options, self.pool, self.watch, self.say = options, pool, watch, say
        # By whether it opens for the first time: who comes back does not wait for new ones.
        self.turns = {first: threading.Semaphore(OPENING_AT_ONCE) for first in (True, False)}
        self.interpreters = Interpreters(options.interpreter, options.engine)
        self.stats = Totals()
        self.lock = threading.RLock()

    def tell(self, take: Callable[Concatenate[int, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Let this method of the core take what happened now."""
        with self.lock:
            return take(time.monotonic_ns(), *args, **kwargs)

    def report(self, take: Callable[Concatenate[int, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same without the lock: what happens in every tick, or with locks of the loop's."""
        return take(time.monotonic_ns(), *args, **kwargs)
