"""Report other nodes that publish the bridge's commands, and sensors that several nodes publish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

SHARED = frozenset({"/tf", "/tf_static", "/diagnostics", "/rosout", "/parameter_events"})  # many nodes publish these
UNKNOWN = "_NODE_NAME_UNKNOWN_"  # a publisher whose node is not discovered yet, or that has no node
LINGER_S = 30.0  # a killed process stays in the ROS graph for a shorter time than this (20 s)


class OtherPublishers:
    """Detects other publishers than the node with this full name and its guard; times are in seconds.

    A second publisher with the name of a node may belong to a process that was killed and restarted. So it is reported
    only after `LINGER_S`, as is a publisher whose node is unknown.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._locals = {node, f"{node}_guard"}
        self._since: dict[str, float] = {}  # by topic: when a possible rival started to publish

    def command_problem(self, topic: str, publishers: Sequence[str], now: float) -> str | None:
        """Return a problem if other nodes publish a command, else None. `publishers` are full names of nodes."""
        rivals = sorted(set(publishers) - self._locals - {UNKNOWN})
        counts = Counter(publishers)
        doubtful = counts[UNKNOWN] > 0 or any(counts[name] > 1 for name in self._locals)
        if not self._are_rivals(f"command {topic}", bool(rivals), doubtful, now):
            return None
        names = " and ".join(rivals) or ("another node" if counts[UNKNOWN] else f"another {self._node}")
        hint = "Stop that node, or let a multiplexer such as twist_mux choose."
        return f"{topic}: {names} publishes this command, too, and the robot obeys both. {hint}"

    def sensor_problem(self, topic: str, publishers: Sequence[str], now: float) -> str | None:
        """Return a problem if several nodes publish a sensor, else None. `publishers` are full names of nodes."""
        others = [name for name in publishers if name not in self._locals]
        named = sorted(set(others) - {UNKNOWN})
        if topic in SHARED or not self._are_rivals(topic, len(named) > 1, len(others) > 1, now):
            return None
        names = " and ".join(named) if len(named) > 1 else f"{len(others)} publishers ({', '.join(named) or 'unknown'})"
        hint = "Stop all but one, or give each its own topic."
        return f"{topic}: {names} publish this sensor, and the observation mixes them. {hint}"

    def _are_rivals(self, key: str, certain: bool, doubtful: bool, now: float) -> bool:
        if not (certain or doubtful):
            self._since.pop(key, None)
        return certain or (doubtful and now - self._since.setdefault(key, now) >= LINGER_S)
