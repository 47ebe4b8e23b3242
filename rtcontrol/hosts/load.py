"""How busy the decoders of a fleet are, by their sessions' measured decisions: where one more session goes, which one
moves away, and how many decoders there should be. Nothing here has a clock or a process of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rtcontrol.hosts.protocol import Host

# Between what is given away and all of a decoder's time: above the middle it is overloaded.
# Whoever is moved away from it comes to one that keeps so much free of what is given away.
MARGIN = 0.1
# A session that was moved stays for so long, whatever its decoder's load.
REST_S = 30.0
# Of what is given away: the decoders are too few above the first share of it, and one of them is too many where the
# others would stay under the second. So long it must be so.
UP, DOWN = 0.75, 0.5
UP_S, DOWN_S = 3.0, 60.0


@dataclass(frozen=True)
class Need:
    """A session's rate, and the seconds of the decoder that one of its decisions takes; those that are decided together
    share theirs. Only sessions of one `place` share a decoder's time."""

    hz: float
    share_s: float
    place: str = ""

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
    return Need(hz, undisturbed(shares) / 1e9, getattr(host, "place", "")) if shares else None


@dataclass(frozen=True)
class DecoderSeat:
    """A session on a decoder. `prefix`: its model and tools; `share_s` None: not measured yet; it came to this decoder
    from another one at `moved_s`."""

    session: str
    prefix: str
    hz: float = 0.0
    share_s: float | None = None
    moved_s: float = -math.inf


@dataclass(frozen=True)
class DecoderLoad:
    """A decoder and who is on it; it `takes` sessions while it is up and stays."""

    name: str
    seats: tuple[DecoderSeat, ...] = ()
    takes: bool = True

    def holds(self, prefix: str) -> bool:
        return any(seat.prefix == prefix for seat in self.seats)


class FleetLoad:
    """The decoders at an instant. What is not measured of a session yet is taken for what others of its prefix need,
    else for what any session needs."""

    def __init__(self, decoders: Sequence[DecoderLoad]) -> None:
        self.decoders = list(decoders)
        by_prefix: dict[str, list[float]] = {}
        for seat in (seat for decoder in decoders for seat in decoder.seats):
            if seat.share_s is not None:
                by_prefix.setdefault(seat.prefix, []).append(seat.share_s)
        every = [share for shares in by_prefix.values() for share in shares]
        self._shares = {prefix: sum(shares) / len(shares) for prefix, shares in by_prefix.items()}
        self._usual = sum(every) / len(every) if every else 0.0

    def need(self, seat: DecoderSeat) -> float:
        """The part of a decoder's time that the session takes."""
        return seat.hz * (self._shares.get(seat.prefix, self._usual) if seat.share_s is None else seat.share_s)

    def busy(self, decoder: DecoderLoad) -> float:
        """The part of its time that its sessions take: more than 1 where they ask for more than there is."""
        return sum(map(self.need, decoder.seats))

    @property
    def used(self) -> float:
        return sum(map(self.busy, self.decoders))

    def place(self, seat: DecoderSeat, most: float, without: str = "", only_with_room: bool = False) -> str | None:
        """Where the session goes: to the least loaded of those that hold its prefix and stay within `most` with it,
        else to the least loaded of all (`only_with_room`: of those that stay within `most`), but for `without`. None
        where there is none."""
        need = self.need(seat)
        there = [decoder for decoder in self.decoders if decoder.takes and decoder.name != without]
        roomy = [decoder for decoder in there if self.busy(decoder) + need <= most]
        holders = [decoder for decoder in roomy if decoder.holds(seat.prefix)]
        chosen = holders or roomy or ([] if only_with_room else there)
        return min(chosen, key=self._order).name if chosen else None

    def relief(self, most: float, now_s: float) -> tuple[str, str] | None:
        """The session that moves away from an overloaded decoder, and where to: one that stays `MARGIN` below `most`
        with it, so that it is not sent back. The smallest that is enough, else the largest; None: nobody moves."""
        over = [decoder for decoder in self.decoders if decoder.takes and self.busy(decoder) > overloaded(most)]
        for decoder in sorted(over, key=self.busy, reverse=True):
            excess = self.busy(decoder) - overloaded(most)
            rested = [seat for seat in decoder.seats if now_s - seat.moved_s >= REST_S and self.need(seat) > 0]
            for seat in sorted(rested, key=lambda one: (self.need(one) < excess, abs(self.need(one) - excess))):
                if to := self.place(seat, most - MARGIN, decoder.name, only_with_room=True):
                    return seat.session, to
        return None

    def after(self, session: str, to: str) -> FleetLoad:
        """The same with a session on another decoder."""
        seat = next(seat for decoder in self.decoders for seat in decoder.seats if seat.session == session)
        moved = []
        for decoder in self.decoders:
            seats = tuple(one for one in decoder.seats if one.session != session)
            moved.append(replace(decoder, seats=(*seats, seat) if decoder.name == to else seats))
        return FleetLoad(moved)

    def _order(self, decoder: DecoderLoad) -> tuple[float, int, str]:
        return round(self.busy(decoder), 6), len(decoder.seats), decoder.name


def overloaded(most: float) -> float:
    """Above this a decoder is, where `most` of its time are given away."""
    return most + max(1.0 - most, 0.0) / 2


class Scaling:
    """How many decoders there should be, between two numbers. Up at once by as many as are needed, when it was so for
    `UP_S`; down by one, when it was so for `DOWN_S`: what went up for a load does not come down by the same load."""

    def __init__(self, least: int, most: int, given_away: float) -> None:
        self.least, self.most, self._given = least, most, given_away
        self._up_s: float | None = None
        self._down_s: float | None = None

    def look(self, now_s: float, used: float, count: int) -> int:
        """How many there should be, of `count` that are there or on their way, with `used` times a decoder's time in
        use (or asked for)."""
        enough = math.ceil(used / (UP * self._given) - 1e-9)
        high = used > UP * self._given * count and count < self.most
        low = count > self.least and used < DOWN * self._given * (count - 1)
        self._up_s = (now_s if self._up_s is None else self._up_s) if high else None
        self._down_s = (now_s if self._down_s is None else self._down_s) if low else None
        if count < self.least:
            return self.least
        if self._up_s is not None and now_s - self._up_s >= UP_S:
            self._up_s = None
            return min(max(enough, count + 1), self.most)
        if self._down_s is not None and now_s - self._down_s >= DOWN_S:
            self._down_s = None
            return count - 1
        return count
