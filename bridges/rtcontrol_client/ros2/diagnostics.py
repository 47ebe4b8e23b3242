"""What `/diagnostics` says of a bridge: a level, the first trouble, and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rtcontrol_client.ros2.types import find

OK, WARN, ERROR = range(3)
ON_TIME = 0.99


def on_time_share(counts: Mapping[str, Any]) -> float | None:
    """Fresh decisions among all ticks told of: the server's misses arrive as `held` or `safe`."""
    ticks = counts["fresh"] + counts["held"] + counts["safe"]
    return counts["fresh"] / ticks if ticks else None


def level_of(
    connected: bool, standing: str, figures: Mapping[str, Any], troubles: Mapping[str, str]
) -> tuple[int, str]:
    """Return the level and the message: what is in force, and the first trouble."""
    share = figures.get("on_time_share")
    level, message = OK, f"{standing} call in force"
    if share is not None and share < ON_TIME:
        level, message = WARN, f"{share:.1%} of the ticks on time"
    if troubles:
        level, message = WARN, next(iter(troubles.values()))
    if standing == "safe":
        level = ERROR
        message = f"safe call in force: {message}" if troubles else "safe call in force"
    if not connected:
        rest = "safe call in force"
        if standing != "safe":
            rest = "the last call is in force until its time-to-live is over"
        level, message = ERROR, f"no connection to the server: {rest}"
    return level, message


def array(level: int, message: str, values: Mapping[str, Any], robot: str | None, stamp_ns: int) -> Any:
    """Make the DiagnosticArray; `values` are the figures and the troubles."""
    made = _message("DiagnosticArray")
    made.header.stamp.sec, made.header.stamp.nanosec = divmod(stamp_ns, 1_000_000_000)
    status = _message("DiagnosticStatus", level=bytes([level]), name="rtcontrol", message=message)
    status.hardware_id = robot or ""
    status.values = [_message("KeyValue", key=key, value=_text(value)) for key, value in values.items()]
    made.status = [status]
    return made


def _message(of: str, **values: Any) -> Any:
    return find(f"diagnostic_msgs/msg/{of}", "msg")[1](**values)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)
