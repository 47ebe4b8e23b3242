"""Several servers as one Ray Serve application, in which each replica is a whole server (docs/scaling.md).

serve run rtcontrol.scale:build model=lander replicas=2
"""

from __future__ import annotations

from typing import Any


def build(args: dict[str, Any]) -> Any:
    """Return the application for options of `rtcontrol serve`, as text or typed values. Raises UserError."""
    from rtcontrol.scale.application import application, options_of  # here: Serve's proxies import this package, too

    return application(options_of(args))
