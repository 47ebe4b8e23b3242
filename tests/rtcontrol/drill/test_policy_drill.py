"""`rtcontrol drill --policy`: nothing of what a policy server does wrong acts, and a drill that saw one act says so."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.drill.policy.drill import FlownDrill, PolicyDrill, judge
from rtcontrol.drill.policy.faults import POLICY_FAULTS
from rtcontrol.drill.policy.server import good_force
from rtcontrol.drill.policy.world import SAFE_FORCE
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.causes import CAUSES
from rtcontrol.telemetry.policy_table import COLUMNS, policy_faults
from tests.helpers.processes import ROOT, cli
from tests.rtcontrol.commands import refused


def drilled(out: Path, faults: int, **env: str) -> dict[str, Any]:
    done = cli("drill", "--policy", "--faults", str(faults), "--out", str(out), timeout=280, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((out / "policy-drill.json").read_text())
    return found


def test_no_fault_of_a_real_server_acts_and_every_one_is_a_miss(tmp_path: Path) -> None:
    found = drilled(tmp_path / "drill", 2 * len(POLICY_FAULTS), RTCONTROL_OPENPI="")
    assert found["wire"] == "rtcontrol" and found["acted"] == 0 and not found["violations"]
    assert {row["fault"] for row in found["faults"]} == set(POLICY_FAULTS)
    assert found["injected"] == 2 * len(POLICY_FAULTS) and found["good_acts"] > found["injected"] / 2
    assert found["safe_acts"] >= 1
    report = json.loads((tmp_path / "drill" / "report.json").read_text())
    assert report["misses"] >= found["injected"]


def test_no_fault_in_openpis_own_messages_acts(tmp_path: Path) -> None:
    if not os.environ.get("RTCONTROL_OPENPI"):
        pytest.skip("RTCONTROL_OPENPI names no interpreter that has openpi-client")
    found = drilled(tmp_path / "drill", len(POLICY_FAULTS))
    assert found["wire"] == "openpi_client" and found["acted"] == 0 and not found["violations"]


ASKED = [{"n": 1, "fault": None}, {"n": 2, "fault": "nan"}, {"n": 3, "fault": None}]


def flown(*forces: float, kind: str = "miss", **miss: Any) -> FlownDrill:
    """Of three ticks, the second with a fault, what acted."""
    events: list[dict[str, Any]] = [{"k": k, "data": {"n": float(k)}} for k in (1, 2, 3)]
    told = {"cause": "decide", "subcause": "not_finite"} if kind == "miss" else {}
    events += [{"k": 1, "kind": "call"}, {"k": 2, "kind": kind, **told, **miss}, {"k": 3, "kind": "call"}]
    return FlownDrill(events, [(i, force) for i, force in enumerate(forces)])


def test_a_run_in_which_only_good_answers_acted_is_judged_so() -> None:
    found = judge(flown(good_force(1), SAFE_FORCE, good_force(3)), ASKED)
    assert (found["acted"], found["good_acts"], found["safe_acts"], found["violations"]) == (0, 2, 1, [])
    (row,) = found["faults"]
    assert row["called"] == {"decide.not_finite": 1}


VIOLATED = {
    "the fault's answer acted": flown(good_force(1), good_force(2), good_force(3), kind="call"),
    "it acted, and the record says nothing of it": flown(good_force(1), good_force(2), good_force(3)),
    "an old answer acted again": flown(good_force(1), good_force(1), good_force(3)),
    "a force that nobody called": flown(good_force(1), 0.777, good_force(3)),
    "a fault that the record calls no miss": flown(good_force(1), good_force(3), kind="null"),
}


@pytest.mark.parametrize("run", VIOLATED.values(), ids=VIOLATED.keys())
def test_whatever_else_acted_is_a_violation(run: FlownDrill) -> None:
    assert judge(run, ASKED)["violations"]


def test_all_kinds_come_as_often_in_an_order_that_the_seed_decides() -> None:
    plan = PolicyDrill(3 * len(POLICY_FAULTS), 5).plan()
    assert sorted(plan) == sorted([*POLICY_FAULTS] * 3)
    assert plan == PolicyDrill(len(plan), 5).plan() != PolicyDrill(len(plan), 6).plan()
    with pytest.raises(UserError, match="no fault of a policy server"):
        PolicyDrill(3, only=("fire",)).plan()


def test_what_a_miss_may_be_called_is_among_the_reports_causes() -> None:
    published = {f"{cause}.{sub}" for cause, entry in CAUSES.items() for sub in entry.subcauses} | {"invalid"}
    assert {called for fault in POLICY_FAULTS.values() for called in fault.called} <= published


def test_the_page_names_every_sub_cause_of_a_policy_server() -> None:
    page = (ROOT / "docs/policies.md").read_text()
    named = {called.partition(".")[2] for fault in POLICY_FAULTS.values() for called in fault.called} - {""}
    assert all(f"| `{name}` |" in page for name in named)


def test_the_table_has_a_row_a_kind_and_the_sum() -> None:
    (table,) = policy_faults(judge(flown(good_force(1)), ASKED))
    assert table.columns == COLUMNS and table.rows[-1] == ("all", "1", "0", "")


REFUSED = {
    "a run's option": (["--policy", "--minutes", "3"], "--minutes is of the drill of a run"),
    "faults of a run": (["--faults", "3"], "--faults is of the drill of a policy server"),
    "no fault": (["--policy", "--only", "fire"], "no fault of a policy server"),
    "no number": (["--policy", "--faults", "0"], "no number of faults"),
    "no interpreter": (["--policy", "--python", "/none/python"], "cannot be started"),
}


@pytest.mark.parametrize(("given", "what"), REFUSED.values(), ids=REFUSED.keys())
def test_what_no_drill_is_told_ends_the_start(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, given: list[str], what: str
) -> None:
    assert what in refused(capsys, "drill", *given, "--out", str(tmp_path / "drill"))
