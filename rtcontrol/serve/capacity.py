"""Whether the decoder has time for one more session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rtcontrol_client.wire import Code, WireError


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
    """Return the first quartile of decisions' times: other load on the machine makes some of them longer."""
    return sorted(shares)[len(shares) // 4]


def need_of(shares: Sequence[float], hz: float) -> Need | None:
    """Return the need of a session whose decisions took so many nanoseconds; None before its first decision."""
    return Need(hz, undisturbed(shares) / 1e9) if shares else None


def weigh(need: Need, others: Iterable[Need], most: float) -> WireError | None:
    """Return the refusal of one more session that would make calls of the others late: where they ask for more than
    `most` of the decoder's time together. The rest is for messages, and for ticks that fall together; those that ask
    for more than there is are late anyway."""
    taken = [other.busy for other in others if 0 < other.busy <= most]
    if not taken or sum(taken) + need.busy <= most:
        return None
    hz = (most - sum(taken)) / need.share_s
    slower = f"Ask for at most {hz:.2g} Hz, or come" if hz >= 1 else "Come"
    return WireError(
        Code.BUSY,
        f"The decoder is taken for {sum(taken):.0%} of its time by {len(taken)} other session(s), and this one needs "
        f"{need.busy:.0%} ({need.hz:g} Hz, {1e3 * need.share_s:.2g} ms a decision): calls of others would be late.",
        f"{slower} again when another session has ended: {most:.0%} are given away.",
        retryable=True,
        fatal=True,
    )
