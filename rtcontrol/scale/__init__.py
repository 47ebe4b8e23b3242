"""Several servers as one Ray Serve application, in which each replica is a complete server (docs/scaling.md).

serve run rtcontrol.scale:build model=lander replicas=2
"""

from __future__ import annotations

from typing import Any


def build(args: dict[str, Any]) -> Any:
    """Return the Ray Serve application. `args`: options of `rtcontrol serve`, as text or typed values."""
    from rtcontrol.scale import application  # imported here, because Serve's proxies import this package, too

    return application.build_application(application.parse_options(args))
