"""The drill of a fleet: its judge, its network, and the whole of it on real parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from commands import refused

from rtcontrol.drill.fleet.faults import FLEET_FAULTS
from rtcontrol.drill.fleet.flock import FlownSession
from rtcontrol.drill.fleet.network import ENTERED, HERE, WAYS
from rtcontrol.drill.fleet.rows import FleetRow
from rtcontrol.drill.fleet.ticks import ClientLine, Flock, NotSteadyError, effect
from rtcontrol.telemetry.fleet_table import COLUMNS, fleet_faults
from rtcontrol_client.client.session import Standing
from rtcontrol_client.wire.messages import FunctionCall, Hello
from tests.conformance.check.stand import Stand
from tests.helpers.processes import cli, environment, free_port, until

HZ, PERIOD_NS = 10.0, 100_000_000


def line(tick: int, fresh: int, held: int = 0, safe: int = 0, status: str = "fresh", **more: Any) -> ClientLine:
    """What a client says 5 ms after this tick."""
    fields: dict[str, Any] = {"cause": None, "up": True, "address": "tcp://a", "session": "s", "resumed": 0}
    fields |= {"beyond": 0, "twice": 0, "error": "", **more}
    return ClientLine(tick * PERIOD_NS + 5_000_000, (fresh, held, safe), status, **fields)


def steady(first: int, last: int, fresh: int, *missed: int) -> list[ClientLine]:
    """A decision at each of these ticks; `fresh` there were before, and so many held and safe ones."""
    return [line(tick, fresh + i + 1, *missed) for i, tick in enumerate(range(first, last))]


def test_session_that_is_decided_for_at_each_tick_lost_none() -> None:
    found = effect(steady(0, 50, 0), 10 * PERIOD_NS, 40 * PERIOD_NS, HZ)
    assert (found.lost, found.held, found.safe, found.again_ms, found.noticed_ms) == (0, 0, 0, 0.0, None)


def test_lost_ticks_are_counted_whether_or_not_anybody_told_them() -> None:
    told = [line(10, 10, 1, status="held", cause="host"), line(11, 10, 1, 1, status="safe", cause="host")]
    silent = effect([*steady(0, 10, 0), *steady(14, 40, 10)], 10 * PERIOD_NS, 39 * PERIOD_NS, HZ)
    spoken = effect([*steady(0, 10, 0), *told, *steady(14, 40, 10, 1, 1)], 10 * PERIOD_NS, 39 * PERIOD_NS, HZ)
    assert silent.lost == spoken.lost == 4
    assert (spoken.held, spoken.safe) == (1, 1) and silent.noticed_ms is None
    assert spoken.noticed_ms == 5.0 and spoken.noticed == "held (host)"
    assert spoken.safe_ms == 300.0, "from the safe call to the next decision"
    assert silent.again_ms == spoken.again_ms == 405.0


def test_session_is_on_time_again_with_eight_ticks_in_a_row_and_not_before() -> None:
    lines = [*steady(0, 10, 0), *steady(14, 20, 10), *steady(22, 40, 16)]
    assert effect(lines, 10 * PERIOD_NS, 39 * PERIOD_NS, HZ).again_ms == 1205.0
    assert effect(lines, 10 * PERIOD_NS, 25 * PERIOD_NS, HZ).again_ms is None


def test_session_that_is_never_decided_for_again_is_told_so() -> None:
    found = effect(steady(0, 10, 0), 10 * PERIOD_NS, 40 * PERIOD_NS, HZ)
    assert found.again_ms is None and found.lost >= 28
    row = FleetRow("kill_node", "a machine killed")
    row.fill([found])
    row.judge()
    assert row.broken == ["nobody found it", "a session was not on time again"]


@pytest.mark.parametrize(("name", "law"), [("beyond", "time-to-live"), ("twice", "decided twice")])
def test_what_a_client_judged_breaks_the_row_of_its_fault_alone(name: str, law: str) -> None:
    lines = [*steady(0, 20, 0), *(line(tick, tick + 1, **{name: 2}) for tick in range(20, 60))]
    for begin, end, count in ((10, 19, 0), (19, 39, 1), (40, 59, 0)):
        row = FleetRow("kill_node", "a machine killed")
        row.fill([effect(lines, begin * PERIOD_NS, end * PERIOD_NS, HZ)])
        row.judge()
        assert len(row.broken) == count, row.broken
        assert all(law in what for what in row.broken)


def test_client_that_acts_by_a_call_beyond_its_time_to_live_is_seen_by_its_own_stamp() -> None:
    stand = Stand(f"tcp://127.0.0.1:{free_port()}")
    given = {"endpoints": [stand.endpoint], "texts": ["x 1"], "options": {"agent": "lander", "hz": 10, "ttl_ms": 300}}
    flown = FlownSession(0, given, threading.Lock())
    try:
        stand.expect(Hello, 20.0, "hello")
        stand.welcome()
        until(lambda: flown._client.connected)
        flown._look("x 1")
        ((seq, stamp_ns),) = flown._captured.items()
        ttl_ms = flown._client.welcome.ttl_ms
        # Whatever the client itself says of its age.
        one = Standing(FunctionCall(name="go"), "fresh", tick=1, seq_obs=seq, age_ms=1.0)
        flown._judge(one, stamp_ns + int(ttl_ms * 1e6))
        assert flown.beyond == 0
        flown._judge(one, stamp_ns + int(ttl_ms * 1e6) + 1_000_000)
        assert flown.beyond == 1
        flown._judge(Standing(FunctionCall(name="go"), "fresh", tick=2, seq_obs=seq - 1, age_ms=1.0), stamp_ns)
        assert flown.twice == 1, "an older observation after a newer one"
    finally:
        flown._client.close()
        stand.close()


def test_each_row_of_the_table_has_its_figures_and_says_what_was_not_possible() -> None:
    row = FleetRow("half_open", "what is sent is lost", impossible="no network of its own")
    other = FleetRow("kill_node", "a machine killed", 6, 51.2, "a client: held (host)", 3, 4, 120.0, 0.0, 400.0, 7, 90)
    (table,) = fleet_faults({"faults": [row.document(), other.document()]})
    assert table.columns == COLUMNS and {len(cells) for cells in table.rows} == {len(COLUMNS)}
    assert table.rows[0][-1] == "not here: no network of its own"
    assert table.rows[1][1:5] == (
        "51: a client: held (host)",
        "held 3, safe 4 ticks; safe for 120 ms at most",
        "400",
        "7 of 90",
    )


REACHED = """
import socket, subprocess, sys, time
from rtcontrol.drill.fleet.network import MachineNetwork
network = MachineNetwork()
link, other = network.link(), network.link()
listens = ("import socket, sys; s = socket.create_server(('', 5000)); print('up', flush=True);"
           "[s.accept()[0].sendall(b'x') for _ in range(99)]")
steps = f"echo ready && read go && ip addr add {link.address}/24 dev eth0 && ip link set eth0 up"
command = ["unshare", "--net", "sh", "-c", f'{steps} && exec "$@"', "sh", sys.executable, "-c", listens]
child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
child.stdout.readline()
link.plug(child.pid)
child.stdin.write("go\\n"); child.stdin.flush(); child.stdout.readline()
def reached(seconds=20.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with socket.create_connection((link.address, 5000), 0.5) as made:
                made.settimeout(0.5)
                return made.recv(1) == b'x'
        except OSError:
            time.sleep(0.05)
    return False
try:
    found = [reached()]
    link.cut(); found.append(reached(0.6)); link.mend(); found.append(reached())
    if network.drops:
        link.drop(); found.append(reached(0.6)); link.mend(); found.append(reached())
    print(found)
finally:
    child.kill()
"""


def own_network() -> tuple[str, ...] | None:
    for way in WAYS:
        tried = ["unshare", *way, "ip", "link", "add", "x", "type", "bridge"]
        if subprocess.run(tried, capture_output=True, check=False).returncode == 0:
            return way
    return None


def test_machine_whose_link_is_cut_is_not_reached_until_it_is_mended() -> None:
    way = own_network()
    if way is None:
        pytest.skip("neither root nor user namespaces")
    command = ["unshare", *way, sys.executable, "-c", REACHED]
    done = subprocess.run(
        command, env=environment(**{ENTERED: HERE}), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.lower())
    assert found == [True, False] * (len(found) // 2) + [True], found


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--fleet", "--minutes", "3"), "--minutes is of the drill of a run"),
        (("--fleet", "--standby"), "--standby is of the drill of a run"),
        (("--ticks", "10"), "--ticks is of the drill of a fleet"),
        (("--fleet", "--only", "frozen"), "--only frozen: there is no such fault"),
        (("--fleet", "--agent", "nobody"), "--agent nobody is not bundled"),
        (("--fleet", "--model", "/no/such/folder"), "/no/such/folder"),
        (("--fleet", "--hz", "900"), "--hz 900 is no rate of this drill"),
        (("--fleet", "--clients", "0"), "--clients 0 is no number"),
        (("--fleet", "--ticks", "0"), "--ticks 0 is no number"),
    ],
)
def test_mistake_in_what_a_fleets_drill_is_given_is_told(
    capsys: pytest.CaptureFixture[str], given: tuple[str, ...], says: str
) -> None:
    assert says in refused(capsys, "drill", *given)


@pytest.fixture(scope="module")
def drilled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The rows of a whole drill by their faults, at a rate that a busy machine keeps."""
    out = tmp_path_factory.mktemp("fleet")
    given = ["--hz", "3", "--clients", "4", "--ticks", "600", "--json", str(out / "fleet.json")]
    done = cli("drill", "--fleet", "--out", str(out / "drill"), *given, timeout=1500)
    assert "Traceback" not in done.stderr, done.stderr
    document = json.loads((out / "fleet.json").read_text())
    print(done.stdout)
    broken = any(row["broken"] or row["not_steady"] for row in document["faults"])
    assert done.returncode == (3 if broken else 0), done.stdout + done.stderr
    return {row["fault"]: row for row in document["faults"]}


# What each row stands for, beside the tests of single parts: tests/rtcontrol/serve/test_doors.py (two fleets of one
# cluster, another version, a killed head) and test_fleet_served.py (a drained node, a killed one, another model).
# - half_open: grpc/grpc-go#3206, linkerd/linkerd2#13023: packets were dropped without a word, and requests went there
#   for a quarter of an hour.
# - kill_node, cut_for_good: istio/istio#33466: the same after a machine had died without a goodbye.
# - cut_for_good: ray-project/ray#28562, ray-project/ray#63763: a machine that had been given up came back, and what ran
#   there went on.
# - cut_all: kubernetes/kubernetes#28832, kubernetes/kubernetes#77864: who was cut off from all machines gave all up.
@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("fault", FLEET_FAULTS)
def test_at_no_fault_a_call_outlives_its_ttl_or_is_decided_twice_and_it_is_found(
    drilled: dict[str, Any], fault: str
) -> None:
    row = drilled[fault]
    if row["impossible"]:
        pytest.skip(row["impossible"])
    assert row["broken"] == []
    assert (row["beyond_ttl"], row["twice"]) == (0, 0)
    assert row["sessions"] > 0 and row["ticks"] > 0, "nobody was there"
    assert row["lost"] == 0 or row["found_ms"] is not None


def test_clients_of_the_drill_have_nothing_of_the_project_but_the_light_client(tmp_path: Path) -> None:
    code = (
        "import sys, rtcontrol.drill.fleet.flock\n"
        "loaded = [n for n in sys.modules if n.partition('.')[0] in ('ray', 'torch', 'rtcontrol')]\n"
        "print(sorted(n for n in loaded if n not in ('rtcontrol', 'rtcontrol.drill', 'rtcontrol.drill.fleet')))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['rtcontrol.drill.fleet.flock']"


def test_clients_that_are_not_decided_for_are_no_law_that_is_broken(tmp_path: Path) -> None:
    given = {"agent": "lander", "ttl_ms": 300.0, "hold_ms": 600.0}
    nobody = f"tcp://127.0.0.1:{free_port()}"
    with (
        Flock([nobody], 1, 10.0, ["x 0"], os.environ, given, lambda: False, tmp_path / "clients.log") as flock,
        pytest.raises(NotSteadyError, match="do not get going"),
    ):
        flock.ready(3.0)
