"""The faults of a fleet: each breaks one thing under load, watches the sessions, and mends what can be mended."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rtcontrol.drill.fleet.machines import HEAD_GONE_S, RayMachine, pulsed
from rtcontrol.drill.fleet.rows import FleetRow
from rtcontrol.drill.fleet.scene import TTL, WHOLE_S, FleetScene
from rtcontrol.drill.fleet.ticks import Flock
from rtcontrol.models.errors import UserError

# A fault is felt within so long, and sessions are on time again within so long, or not at all.
FELT_S, AGAIN_S = 2.0, 40.0
CUT_S = 3.0
PULSES, STOPPED_S, RUNS_S = 15, 0.2, 0.2
# Of the change of the model: so many sessions share its ticks.
ROLLED = 16
ENDED_S = 60.0

Inject = Callable[[FleetScene, FleetRow], None]


@dataclass(frozen=True)
class FleetFault:
    """`cuts`, `drops`: what it needs of the machines' network."""

    about: str
    inject: Inject
    cuts: bool = False
    drops: bool = False


def _watched(scene: FleetScene, row: FleetRow, flock: Flock, begin_ns: int, felt_s: float = FELT_S) -> int:
    """Until the sessions are on time again: the row's figures, its laws, and the instant."""
    felt_s = max(felt_s, TTL / scene.options.hz)
    time.sleep(max(0.0, felt_s - (time.monotonic_ns() - begin_ns) / 1e9))
    end_ns = flock.settled(begin_ns, AGAIN_S)
    row.fill(flock.effects(begin_ns, end_ns), scene.signs(begin_ns))
    row.judge()
    return end_ns


def kill_decoder(scene: FleetScene, row: FleetRow) -> None:
    with scene.flock() as flock:
        flock.ready()
        victim, _ = scene.busiest(scene.doors[0])
        begin_ns = time.monotonic_ns()
        os.kill(victim["pid"], signal.SIGKILL)
        _watched(scene, row, flock, begin_ns)
    row.notes.append(f"{victim['sessions']} sessions were there")
    scene.whole()


def kill_node(scene: FleetScene, row: FleetRow) -> None:
    scene.apart()
    with scene.flock() as flock:
        flock.ready()
        victim, machine = scene.busiest(scene.doors[0])
        begin_ns = time.monotonic_ns()
        machine.kill()
        _watched(scene, row, flock, begin_ns)
    row.notes.append(f"{victim['sessions']} sessions were there")
    scene.machines.remove(machine)
    scene.machines.fill()
    _again_elsewhere(scene, row, begin_ns, victim["pid"])


def _again_elsewhere(scene: FleetScene, row: FleetRow, begin_ns: int, pid: int) -> None:
    """Until Ray has started what was lost on another machine. UserError where it does not."""
    give_up = time.monotonic() + WHOLE_S
    while any(pid in [one.get("pid") for one in door.decoders()] for door in scene.doors) and not scene.over():
        if time.monotonic() > give_up:
            raise UserError("A decoder that was lost is not started elsewhere.", f"See {scene.out}.")
        time.sleep(0.1)
    scene.whole()
    row.notes.append(f"its decoder was there again, elsewhere, after {(time.monotonic_ns() - begin_ns) / 1e9:.0f} s")


def kill_door(scene: FleetScene, row: FleetRow) -> None:
    with scene.flock() as flock:
        flock.ready()
        door = scene.doors.pop(0)
        there = {number: list(lines)[-1] for number, lines in flock.lines.items() if lines[-1].address == door.endpoint}
        begin_ns = time.monotonic_ns()
        door.kill()
        end_ns = _watched(scene, row, flock, begin_ns)
    took, anew = [], 0
    for number, last in there.items():
        back = next((one for one in flock.lines[number] if one.t_ns <= end_ns and one.resumed > last.resumed), None)
        anew += back is None
        took += [] if back is None else [(back.t_ns - begin_ns) / 1e6]
    if took:
        row.notes.append(
            f"{len(took)} sessions went on at the other by their token, after {min(took):.0f} to {max(took):.0f} ms"
        )
    if anew:
        row.broken.append(f"{anew} of {len(there)} sessions did not go on by their token")
    scene.open_door()
    scene.whole()


def slow_node(scene: FleetScene, row: FleetRow) -> None:
    scene.apart()
    with scene.flock() as flock:
        flock.ready()
        victim, machine = scene.busiest(scene.doors[0])
        begin_ns = time.monotonic_ns()
        with pulsed(machine, STOPPED_S, RUNS_S) as pulse:
            for _ in range(PULSES):
                pulse()
        left = next((one["sessions"] for one in scene.doors[0].decoders() if one["decoder"] == victim["decoder"]), 0)
        row.mended_ms = (time.monotonic_ns() - begin_ns) / 1e6
        _watched(scene, row, flock, begin_ns)
    row.notes.append(f"{victim['sessions'] - left} of {victim['sessions']} sessions left it")
    scene.whole()


def cut_short(scene: FleetScene, row: FleetRow) -> None:
    scene.apart()
    with scene.flock() as flock:
        flock.ready()
        victim, machine = scene.busiest(scene.doors[0])
        _cut_and_mended(scene, row, flock, [machine])
    row.notes.append(f"{victim['sessions']} sessions were there")


def cut_all(scene: FleetScene, row: FleetRow) -> None:
    with scene.flock() as flock:
        flock.ready()
        _cut_and_mended(scene, row, flock, scene.machines.workers)


def _cut_and_mended(scene: FleetScene, row: FleetRow, flock: Flock, machines: Sequence[RayMachine]) -> None:
    links = [machine.link for machine in machines if machine.link is not None]
    begin_ns = time.monotonic_ns()
    for link in links:
        link.cut()
    time.sleep(CUT_S)
    for link in links:
        link.mend()
    row.mended_ms = 1e3 * CUT_S
    _watched(scene, row, flock, begin_ns, CUT_S + FELT_S)
    scene.whole()


def half_open(scene: FleetScene, row: FleetRow) -> None:
    scene.apart()
    with scene.flock() as flock:
        flock.ready()
        victim, machine = scene.busiest(scene.doors[0])
        assert machine.link is not None, "the network is there"
        begin_ns = time.monotonic_ns()
        machine.link.drop()
        try:
            _watched(scene, row, flock, begin_ns)
        finally:
            machine.link.mend()
        scene.whole()
    row.notes.append(f"{victim['sessions']} sessions were there")


def cut_for_good(scene: FleetScene, row: FleetRow) -> None:
    """Until Ray has given the machine up, and its decoder is there again elsewhere. Then it comes back, with a decoder
    that is nobody's any more."""
    scene.apart()
    with scene.flock() as flock:
        flock.ready()
        victim, machine = scene.busiest(scene.doors[0])
        assert machine.link is not None, "the network is there"
        begin_ns = time.monotonic_ns()
        machine.link.cut()
        _watched(scene, row, flock, begin_ns)
        scene.machines.fill(1)  # in its place
        _again_elsewhere(scene, row, begin_ns, victim["pid"])
        machine.link.mend()
        mended_ns = time.monotonic_ns()
        give_up = time.monotonic() + ENDED_S
        while Path(f"/proc/{victim['pid']}").exists() and time.monotonic() < give_up and not scene.over():
            time.sleep(0.1)
        if Path(f"/proc/{victim['pid']}").exists():
            row.broken.append("the decoder that was cut off goes on")
        else:
            row.notes.append(f"the old one ended {(time.monotonic_ns() - mended_ns) / 1e9:.0f} s after the link was up")
        end_ns = flock.settled(mended_ns, AGAIN_S)
        row.count_twice(flock.effects(begin_ns, end_ns))
    row.notes.append(f"{victim['sessions']} sessions were there")
    scene.machines.remove(machine)


def change_model(scene: FleetScene, row: FleetRow) -> None:
    door, hz = scene.open_single(), scene.options.hz
    with scene.flock([door.endpoint], ROLLED) as flock:
        flock.ready()
        begin_ns = time.monotonic_ns()
        seconds, done, failed = scene.options.ticks / (ROLLED * hz), list[str](), list[str]()
        changes = [scene.copied("changed"), scene.options.model]

        def change() -> None:
            for turn, model in enumerate(changes):
                time.sleep(max(0.0, begin_ns / 1e9 + seconds * (0.1 + 0.4 * turn) - time.monotonic()))
                try:
                    door.change(model)
                    done.append(model)
                except UserError as error:
                    failed.append(error.what)

        changing = threading.Thread(target=change, name="change-model", daemon=True)
        changing.start()
        while not scene.over() and (changing.is_alive() or (time.monotonic_ns() - begin_ns) / 1e9 < seconds):
            time.sleep(0.1)
        _watched(scene, row, flock, begin_ns, seconds)
    row.notes.append(f"changed {len(done)} times, decoder by decoder")
    row.broken += [f"the model was not changed: {what}" for what in failed]
    scene.whole(door)


def drain_node(scene: FleetScene, row: FleetRow) -> None:
    door = scene.open_single()
    with scene.flock([door.endpoint]) as flock:
        flock.ready()
        victim, machine = scene.busiest(door)
        begin_ns = time.monotonic_ns()
        scene.machines.drain(machine)
        give_up = time.monotonic() + ENDED_S
        while victim["decoder"] in [one["decoder"] for one in door.decoders()] and not scene.over():
            if time.monotonic() > give_up:
                row.broken.append("nobody left the machine")
                break
            time.sleep(0.1)
        left_s = (time.monotonic_ns() - begin_ns) / 1e9
        _watched(scene, row, flock, begin_ns)
        machine.kill()
    row.notes.append(f"{victim['sessions']} sessions had left it after {left_s:.1f} s")
    scene.machines.remove(machine)
    scene.whole()


def kill_head(scene: FleetScene, row: FleetRow) -> None:
    """The last one: the cluster is gone with it."""
    with scene.flock() as flock:
        flock.ready()
        assert scene.machines.head is not None, "it was started"
        begin_ns = time.monotonic_ns()
        scene.machines.head.kill()
        give_up = time.monotonic() + HEAD_GONE_S + ENDED_S
        while not all(door.ended for door in scene.doors) and not scene.over() and time.monotonic() < give_up:
            time.sleep(0.1)
        ended_s = (time.monotonic_ns() - begin_ns) / 1e9
        time.sleep(FELT_S)
        end_ns = time.monotonic_ns()
        row.fill(flock.effects(begin_ns, end_ns), scene.signs(begin_ns))
        row.again_ms = None
        row.judge(recovers=False)
        unsafe = sum(lines[-1].status != "safe" for lines in flock.lines.values())
    if not any("head" in words for _, words in scene.signs(begin_ns)):
        row.broken.append("no server said that the head is gone")
    if unsafe:
        row.broken.append(f"{unsafe} clients do not end safe")
    if all(door.ended for door in scene.doors):
        row.notes.append(f"the servers end after {ended_s:.0f} s (Ray was told {HEAD_GONE_S} s), all clients safe")
    else:
        row.broken.append("a server goes on without a head")


FLEET_FAULTS = {
    "kill_decoder": FleetFault("a decoder killed", kill_decoder),
    "kill_door": FleetFault("a server killed", kill_door),
    "slow_node": FleetFault(
        f"a machine stands still {1e3 * STOPPED_S:.0f} ms of {1e3 * (STOPPED_S + RUNS_S):.0f}", slow_node
    ),
    "cut_short": FleetFault(f"a machine's link down for {CUT_S:g} s", cut_short, cuts=True),
    "cut_all": FleetFault(f"the links of all machines down for {CUT_S:g} s", cut_all, cuts=True),
    "half_open": FleetFault("what is sent to a machine is lost", half_open, cuts=True, drops=True),
    "cut_for_good": FleetFault("a machine's link down until Ray has given it up", cut_for_good, cuts=True),
    "kill_node": FleetFault("a machine killed", kill_node),
    "change_model": FleetFault("the model changed, and back", change_model),
    "drain_node": FleetFault("a machine drained (`ray drain-node`)", drain_node),
    "kill_head": FleetFault("the cluster's head killed", kill_head),
}
