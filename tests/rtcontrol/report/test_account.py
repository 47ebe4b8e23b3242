"""The one account: what it counts, and that every format takes it of a record of which the first parts are gone."""

from __future__ import annotations

import json
import random
from pathlib import Path

from flown import flown, two_humps

from rtcontrol.telemetry import as_html, as_json, as_junit, as_perfetto
from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.gates import parse
from rtcontrol.telemetry.recorded import load
from rtcontrol.telemetry.recorder import Recorder
from tests.helpers.processes import until


def test_every_format_takes_a_record_whose_first_parts_are_gone(tmp_path: Path) -> None:
    made = flown(16, 60, two_humps(3), saw=lambda k: random.Random(k).randbytes(400).hex())
    recorder, live = Recorder(tmp_path / "record.mcap", next(made)["header"], most=200_000), Account()
    live.add({"header": recorder.header})
    recorder.fold, recorder.state = live.add, live.state
    for i, event in enumerate(made):
        recorder.write(event)
        if i % 100 == 0:
            recorder._due.set()
            until(lambda: not recorder._queue and not recorder._taken)
    recorder.close()
    (run,) = load([tmp_path])
    ticks = run.timeline.k
    assert 0 < run.report["record"]["ticks_from"] <= ticks[0] and ticks[-1] - ticks[0] == len(ticks) - 1
    assert run.report["releases"] == live.releases == 960
    gates = [parse("releases==960")]
    for render in (as_html.render, as_junit.render, as_perfetto.render):
        assert len(render([run], gates)) > 1000
    told = json.loads(as_json.render([run], gates))
    assert told["misses"] == live.misses and told["gates"][0]["holds"]
    assert told["misses_by_subcause"] == dict(live.misses_by_subcause)


def test_every_safe_call_but_the_one_at_the_exit_is_counted() -> None:
    account = Account()
    for why in ("miss", "loop", "pause", "stop", "exit"):
        for in_force in (False, True):  # the first try fails
            account.add({"safe": "push(force=0)", "why": why, "t_s": 1.0, "in_force": in_force})
    assert account.safe_calls == 4
