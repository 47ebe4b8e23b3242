"""Report other nodes that publish the robot's commands, or a sensor that another node publishes, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

SHARED = frozenset({"/tf", "/tf_static", "/diagnostics", "/rosout", "/parameter_events"})  # many nodes publish these
UNKNOWN = "_NODE_NAME_UNKNOWN_"  # a publisher whose node is not discovered yet, or that has no node
LINGER_S = 30.0  # longer than a process that was killed stays in the ROS graph (20 s)


class Rivals:
    """Finds rivals of the node with this full name and of its guard; the caller passes the time in seconds.

    A second publisher of one node may belong to a process that was killed and started again. It counts as a rival only
    after `LINGER_S`, and so does a publisher without a node.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._locals = {node, f"{node}_guard"}
        self._since: dict[str, float] = {}  # when a topic got a publisher that may be a rival

    def of_command(self, topic: str, publishers: Sequence[str], now: float) -> str | None:
        """Return the problem with the publishers of a command (the full node name of each), or None."""
        rivals = sorted(set(publishers) - self._locals - {UNKNOWN})
        counts = Counter(publishers)
        doubtful = counts[UNKNOWN] > 0 or any(counts[name] > 1 for name in self._locals)
        if not self._are_rivals(f"command {topic}", bool(rivals), doubtful, now):
            return None
        names = " and ".join(rivals) or ("another node" if counts[UNKNOWN] else f"another {self._node}")
        hint = "Stop that node, or let a multiplexer such as twist_mux choose."
        return f"{topic}: {names} publishes this command, too, and the robot obeys both. {hint}"

    def of_sensor(self, topic: str, publishers: Sequence[str], now: float) -> str | None:
        """Return the problem with the publishers of a sensor, or None."""
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
