"""What the sessions of a server need of its decoder, by what decisions take there now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rtcontrol.hosts.base import PlaceTrouble

MOST = 0.8  # of the decoder's time: what is left is for messages, and for ticks that fall together


@dataclass(frozen=True)
class Need:
    """A session's rate, and the seconds of the decoder that one of its decisions takes; those that are decided together
    share theirs."""

    hz: float
    share_s: float

    @property
    def busy(self) -> float:
        """The part of the decoder's time that it takes."""
        return self.hz * self.share_s


def weigh(need: Need, others: Iterable[Need]) -> None:
    """Raises PlaceTrouble (full) where one more session would make calls of the others late. Those that ask for more
    than there is are late anyway."""
    taken = [other.busy for other in others if 0 < other.busy <= MOST]
    if not taken or sum(taken) + need.busy <= MOST:
        return
    hz = (MOST - sum(taken)) / need.share_s
    slower = f"Ask for at most {hz:.2g} Hz, or come" if hz >= 1 else "Come"
    raise PlaceTrouble(
        f"The decoder is taken for {sum(taken):.0%} of its time by {len(taken)} other session(s), and this one needs "
        f"{need.busy:.0%} ({need.hz:g} Hz, {1e3 * need.share_s:.2g} ms a decision): calls of others would be late.",
        f"{slower} again when another session has ended: {MOST:.0%} are given away.",
        full=True,
    )
