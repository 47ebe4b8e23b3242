"""What a session needs of its decoder's time, by its measured decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rtcontrol.hosts.protocol import Host


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


def undisturbed(shares: Sequence[float]) -> float:
    """Of what decisions took: what one of four stayed under, as others on the machine make some of them longer."""
    return sorted(shares)[len(shares) // 4]


def need_of(host: Host, hz: float) -> Need | None:
    """What a session needs that decides there so often; None before its first decision."""
    shares = list(host.shares)
    return Need(hz, undisturbed(shares) / 1e9) if shares else None
