"""Who decides where, and how many decoders there are: by numbers alone."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.hosts.load import (
    DOWN,
    DOWN_S,
    MARGIN,
    REST_S,
    UP_S,
    DecoderLoad,
    DecoderSeat,
    FleetLoad,
    Scaling,
    overloaded,
)

MOST = 0.8


@st.composite
def fleets(draw: st.DrawFn) -> FleetLoad:
    numbers, decoders = iter(range(10_000)), []
    for i in range(draw(st.integers(1, 5))):
        seats = tuple(
            DecoderSeat(
                f"s{next(numbers)}",
                draw(st.sampled_from(["a", "b", "c"])),
                draw(st.sampled_from([0.0, 1.0, 5.0, 20.0])),
                draw(st.sampled_from([None, 0.001, 0.01, 0.05])),
            )
            for _ in range(draw(st.integers(0, 8)))
        )
        decoders.append(DecoderLoad(f"decoder-{i}", seats, draw(st.booleans())))
    return FleetLoad(decoders)


seats = st.builds(
    DecoderSeat, st.just("new"), st.sampled_from(["a", "b", "d"]), st.floats(0, 50), st.none() | st.floats(0.0, 0.1)
)


@given(fleet=fleets(), seat=seats)
def test_a_session_goes_to_the_holder_of_its_prefix_that_has_room_else_to_the_least_loaded(
    fleet: FleetLoad, seat: DecoderSeat
) -> None:
    there = {decoder.name: decoder for decoder in fleet.decoders if decoder.takes}
    chosen, need = fleet.place(seat, MOST), fleet.need(seat)
    if not there:
        assert chosen is None
        return
    assert chosen is not None
    busy = {name: fleet.busy(decoder) for name, decoder in there.items()}
    room = {name for name in there if busy[name] + need <= MOST}
    holders = {name for name in room if there[name].holds(seat.prefix)}
    among = holders or room or set(there)
    assert chosen in among and busy[chosen] <= min(busy[name] for name in among) + 1e-5
    assert (fleet.place(seat, MOST, only_with_room=True) is None) == (not room)
    assert fleet.place(seat, MOST, without=chosen) != chosen


def test_what_was_not_measured_yet_counts_as_what_others_of_its_prefix_need() -> None:
    # vllm-project/router#235: sessions that come at once all see the same free place, unless each takes it at once.
    known = DecoderSeat("known", "a", 10.0, 0.03)
    fleet = FleetLoad([DecoderLoad("one", (known, DecoderSeat("coming", "a", 10.0))), DecoderLoad("two")])
    assert fleet.place(DecoderSeat("next", "a", 10.0), MOST) == "two"
    assert fleet.place(DecoderSeat("other", "b", 10.0, 0.001), MOST) == "two", "the least loaded of those with room"


@given(fleet=fleets())
def test_nobody_is_sent_to_and_fro_between_overloaded_decoders(fleet: FleetLoad) -> None:
    sessions = [seat.session for decoder in fleet.decoders for seat in decoder.seats]
    moved: list[str] = []
    while (relief := fleet.relief(MOST, 0.0)) is not None:
        session, to = relief
        assert session not in moved, "moved twice, and nothing changed"
        before = next(d for d in fleet.decoders if any(s.session == session for s in d.seats))
        assert fleet.busy(before) > overloaded(MOST)
        # What others are measured to need stays as it is: only the place changes.
        shares = {s.session: fleet.need(s) / s.hz for d in fleet.decoders for s in d.seats if s.hz}
        fixed = [
            replace(d, seats=tuple(replace(s, share_s=shares.get(s.session, 0.0)) for s in d.seats))
            for d in fleet.decoders
        ]
        fleet = FleetLoad(fixed).after(session, to)
        assert fleet.busy(next(d for d in fleet.decoders if d.name == to)) <= MOST - MARGIN + 1e-9
        moved.append(session)
        assert len(moved) <= len(sessions)


def test_a_session_that_was_moved_rests() -> None:
    seats = (DecoderSeat("a", "p", 10.0, 0.05, moved_s=100.0), DecoderSeat("b", "p", 10.0, 0.05, moved_s=100.0))
    fleet = FleetLoad([DecoderLoad("one", seats), DecoderLoad("two")])
    assert fleet.relief(MOST, 100.0 + REST_S - 0.1) is None
    assert fleet.relief(MOST, 100.0 + REST_S) == ("a", "two")
    assert fleet.after("a", "two").relief(MOST, 1000.0) is None


@given(used=st.floats(0, 20), count=st.integers(1, 12), least=st.integers(1, 4), more=st.integers(0, 8))
def test_a_steady_load_is_scaled_for_once_and_never_to_and_fro(used: float, count: int, least: int, more: int) -> None:
    # ray-project/ray#18925: up by a long queue, down as soon as it was shared out, and up again, for ever.
    most = least + more
    scaling = Scaling(least, most, MOST)
    counts = [min(count, most)]
    for step in range(3000):
        counts.append(scaling.look(step * 0.5, used, counts[-1]))
    assert all(least <= n <= most for n in counts[1:])
    directions = [math.copysign(1, b - a) for a, b in itertools.pairwise(counts) if b != a]
    assert len(set(directions[1 if count < least else 0 :])) <= 1, f"to and fro: {counts}"
    assert used <= MOST * counts[-1] or counts[-1] == most, "too few"
    assert used >= DOWN * MOST * (counts[-1] - 1) or counts[-1] == least, "too many"


def test_a_moment_scales_nothing() -> None:
    # ray-project/ray#26455: replicas that start and stop with each reading.
    scaling = Scaling(1, 4, MOST)
    for step in range(1000):
        used = 1.5 if step % 5 == 0 else 0.1  # above for a look, then below again
        assert scaling.look(step * 0.5, used, 1) == 1
    for step in range(1000, 2000):
        used = 0.1 if step % 5 else 1.0
        assert scaling.look(step * 0.5, used, 2) == 2


@pytest.mark.parametrize("used", [0.7, 3.0])
def test_up_after_a_while_by_all_that_is_needed_and_down_later_by_one(used: float) -> None:
    scaling = Scaling(1, 8, MOST)
    assert scaling.look(0.0, used, 1) == 1
    assert scaling.look(UP_S - 0.1, used, 1) == 1
    assert scaling.look(UP_S, used, 1) == math.ceil(used / 0.6)
    assert scaling.look(10.0, 0.0, 8) == 8
    assert scaling.look(10.0 + DOWN_S - 0.1, 0.0, 8) == 8
    assert scaling.look(10.0 + DOWN_S, 0.0, 8) == 7
    assert scaling.look(10.5 + DOWN_S, 0.0, 7) == 7, "one after the other"
