"""What `/diagnostics` says of a bridge: a level, the first trouble, and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rtcontrol_client.ros2.msgs import builtin_interfaces, diagnostic_msgs, std_msgs

OK, WARN, ERROR = range(3)
ON_TIME = 0.99


def quantiles(values_ns: list[int]) -> dict[str, float]:
    """p50, p99 and the largest in milliseconds; nothing of nothing."""
    ordered = sorted(values_ns)
    shares = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    return {n: round(ordered[min(len(ordered) - 1, int(s * len(ordered)))] / 1e6, 3) for n, s in shares if ordered}


def on_time_share(counts: Mapping[str, Any]) -> float | None:
    """Fresh decisions among all ticks told of: the server's misses arrive as `held` or `safe`."""
    ticks = counts["fresh"] + counts["held"] + counts["safe"]
    return counts["fresh"] / ticks if ticks else None


def diagnostic_status(connected: bool, standing: str, figures: Mapping[str, Any], troubles: Mapping[str, str]) -> Any:
    """The DiagnosticStatus: what is in force, and the first trouble."""
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
    values = [diagnostic_msgs.KeyValue(key=str(key), value=_text(value)) for key, value in figures.items()]
    values += [diagnostic_msgs.KeyValue(key=key, value=value) for key, value in troubles.items()]
    return diagnostic_msgs.DiagnosticStatus(level=level, name="rtcontrol", message=message, values=values)


def array(status: Any, robot: str | None, wall_ns: int) -> Any:
    """The message with its stamp."""
    status.hardware_id = robot or ""
    stamp = builtin_interfaces.Time(sec=wall_ns // 1_000_000_000, nanosec=wall_ns % 1_000_000_000)
    return diagnostic_msgs.DiagnosticArray(header=std_msgs.Header(stamp=stamp), status=[status])


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return " ".join(f"{k} {_text(v)}" for k, v in value.items())
    return "" if value is None else str(value)
