"""An application of Ray Serve: HTTP and WebSocket come through Serve's proxies, and its replicas are doors of a fleet.

    serve run rtcontrol.ray_serve:build model=lander fleet=lab decoders=2

docs/scaling.md tells its arguments. Serve's proxies import this package: it loads nothing until `build` is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def build(args: Mapping[str, Any]) -> Any:
    """The application, of arguments as `serve run` or a Serve config gives them. Raises UserError."""
    from rtcontrol.ray_serve.application import application

    return application(args)
