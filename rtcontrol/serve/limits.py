"""What the sessions of a server need of its decoder, by what decisions take there now."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from rtcontrol.hosts.load import Need
from rtcontrol.hosts.protocol import DecoderUnavailable


def weigh(need: Need, others: Iterable[Need], most: float) -> None:
    """Raises DecoderUnavailable (full) where one more session would make calls of the others late: where they ask for
    more than `most` of the decoder's time together. The rest is for messages, and for ticks that fall together; those
    that ask for more than there is are late anyway."""
    taken = [other.busy for other in others if 0 < other.busy <= most]
    if not taken or sum(taken) + need.busy <= most:
        return
    hz = (most - sum(taken)) / need.share_s
    slower = f"Ask for at most {hz:.2g} Hz, or come" if hz >= 1 else "Come"
    raise DecoderUnavailable(
        f"The decoder is taken for {sum(taken):.0%} of its time by {len(taken)} other session(s), and this one needs "
        f"{need.busy:.0%} ({need.hz:g} Hz, {1e3 * need.share_s:.2g} ms a decision): calls of others would be late.",
        f"{slower} again when another session has ended: {most:.0%} are given away (--busy-max).",
        full=True,
    )


try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

# Beyond these a session could not write its record any more.
SPARE = 64


def raise_limit() -> None:
    """As many as the system lets this process have: a thousand idle peers are no reason to refuse others."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            except (ValueError, OSError):  # some systems have a lower bound than they tell
                return


def shortage() -> str | None:
    """What to tell people when nearly all are taken."""
    if resource is None:
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        # The lowest that is free, and so nearly how many are taken.
        taken = os.open(os.devnull, os.O_RDONLY)
        os.close(taken)
    except OSError:
        taken = limit
    if limit == resource.RLIM_INFINITY or taken < limit - SPARE:
        return None
    return f"{taken} of {limit} open files and connections are taken: new ones are refused. Raise `ulimit -n`."


class TokenBucket:
    """`rate` tokens a second, at most `burst` of them at once. Not locked: two threads may get one token too many."""

    __slots__ = ("_burst", "_filled_s", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._tokens = burst
        self._filled_s = time.monotonic()

    def take(self) -> bool:
        """Whether there was a token; it is gone then."""
        if self._tokens < 1.0:
            now = time.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._filled_s) * self._rate)
            self._filled_s = now
            if self._tokens < 1.0:
                return False
        self._tokens -= 1.0
        return True
