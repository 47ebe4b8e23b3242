"""How many files and connections this process may have open, and how many of these are left."""

from __future__ import annotations

import os

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
