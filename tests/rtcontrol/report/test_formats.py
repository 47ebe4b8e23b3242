"""Each format says what the account says, and can be read by those that it is for."""

from __future__ import annotations

import base64
import io
import json
import re
import struct
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from flown import flown, recorded, written
from junitparser import JUnitXml
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from rich.console import Console

from rtcontrol.bridges.console import printable
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry import as_html, as_json, as_junit, as_perfetto, table
from rtcontrol.telemetry.gates import parse
from rtcontrol.telemetry.recorded import Recorded, load
from rtcontrol.telemetry.report import held, on_time_share

HOSTILE = "</script><script>alert(1)</script><!-- & \" ' {{ 7 * 7 }} \u2028"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return recorded(tmp_path_factory.mktemp("run"))


def embedded(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def unpacked(column: dict[str, str]) -> tuple[Any, ...]:
    data = base64.b64decode(column["data"])
    size, code = {"u1": (1, "B"), "u2": (2, "H"), "u4": (4, "I"), "f4": (4, "f")}[column["kind"]]
    return struct.unpack(f"<{len(data) // size}{code}", data)


def test_json_holds_the_report_and_what_follows_from_it(run: Recorded) -> None:
    made = json.loads(as_json.render([run], [parse("miss_rate<=0.9"), parse("misses == 0")]))
    assert run.report.items() <= made.items()
    assert [(g["gate"], g["holds"]) for g in made["gates"]] == [("miss_rate<=0.9", True), ("misses==0", False)]
    assert made["windows"][0] == {"m": 2, "k": 2} and len(made["bursts"]) <= 10
    assert [line["hz"] for line in made["what_if"]] == [10, 12, 16, 20, 30]
    assert made["stages_ms"]["decide"]["max"] > 100
    assert [one["name"] for one in json.loads(as_json.render([run, run], []))] == [run.name] * 2


def test_junit_fails_the_gates_that_do_not_hold(run: Recorded) -> None:
    gates = [parse("miss_rate<=0.001"), parse("latency_ms.p99<1e4"), parse("misses_by_cause.host==0")]
    suites = JUnitXml.fromstring(as_junit.render([run, replace(run, name="again")], gates))
    assert (suites.tests, suites.failures, suites.errors) == (6, 2, 0)
    failed, *passed = next(iter(suites))
    assert failed.name == "miss_rate<=0.001" and f"it is {run.report['miss_rate']:g}" in failed.result[0].message
    assert not any(case.is_failure for case in passed)


def test_junit_without_a_gate_is_refused_since_it_would_always_pass(run: Recorded) -> None:
    with pytest.raises(UserError, match="tests nothing without a gate"):
        as_junit.render([run], [])


def test_a_trace_has_a_track_a_thread_and_slices_that_nest(run: Recorded) -> None:
    trace = Trace.FromString(as_perfetto.render([run], []))
    names = {
        p.track_descriptor.uuid: p.track_descriptor.thread.thread_name
        for p in trace.packet
        if p.HasField("track_descriptor")
    }
    assert {*names.values()} >= {"loop", "decoder", "actuator", "world", "recorder"}
    counts: dict[tuple[str, str], int] = defaultdict(int)
    open_slices: dict[str, list[tuple[str, int]]] = defaultdict(list)
    decided = []
    events = [p for p in trace.packet if p.HasField("track_event")]
    for packet in sorted(events, key=lambda p: p.timestamp):  # a stable sort, as the trace processor's
        event, track = packet.track_event, names[packet.track_event.track_uuid]
        if event.type == TrackEvent.TYPE_SLICE_END:
            name, begun = open_slices[track].pop()
            decided += [packet.timestamp - begun] if name == "decide" else []
        else:
            counts[track, event.name] += 1
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                open_slices[track].append((event.name, packet.timestamp))
    assert not any(open_slices.values())
    acted = run.timeline.times["execute_ms"].count
    assert counts["actuator", "execute"] == acted and counts["loop", "observe"] == run.report["ticks"]
    assert counts["decoder", "decide"] == run.timeline.times["decide_ms"].count == len(decided)
    assert abs(max(decided) / 1e6 - run.report["decide_ms"]["max"]) < 0.01
    assert counts["recorder", "tick"] == counts["world", "observation"] == run.report["ticks"]
    missed = sum(n for (track, name), n in counts.items() if track == "ticks" and name.startswith("decide."))
    assert missed == run.report["misses_by_cause"]["decide"]


def test_a_trace_of_a_record_without_spans_says_what_its_times_say(tmp_path: Path) -> None:
    run = recorded(tmp_path, spans=False)
    shown = [entry for entry in as_perfetto.entries(run) if entry[0] == "actuator"]
    assert len(shown) == run.timeline.times["execute_ms"].count
    assert all(a[3] is not None and a[3] <= b[2] for a, b in pairwise(shown))


def test_a_page_holds_every_tick_and_why_it_missed(run: Recorded) -> None:
    page = as_html.render([run], [parse("misses==0")])
    (data,) = embedded(page)["runs"]
    assert list(unpacked(data["k"])) == [*run.timeline.k]
    causes = [data["words"]["cause"]["words"][c] for c in unpacked(data["words"]["cause"]["codes"])]
    missed = [row for row, cause in enumerate(causes) if cause]
    assert len(missed) == run.report["misses"] == len(data["missed"])
    first = data["missed"][str(missed[0])]
    assert first["saw"]["observation"] == f"x {run.timeline.k[missed[0]]}" and first["instead"]
    for k, row in zip(unpacked(data["numbers"]["decided"]), range(len(causes)), strict=True):
        assert k == pytest.approx(run.timeline.numbers["decided"][row], rel=1e-6, nan_ok=True)
    assert data["curves"]["latency"] == sorted(data["curves"]["latency"])
    assert "misses==0" in page and 'class="fails"' in page


def test_a_page_needs_nothing_else_and_no_text_of_a_record_is_markup(tmp_path: Path) -> None:
    run = recorded(tmp_path, saw=lambda k: HOSTILE, env=HOSTILE, instruction=HOSTILE)
    page = as_html.render([run], [])
    assert "alert(1)</script>" not in page
    assert page.count("<script") == page.count("</script>") == 4
    missed = next(iter(embedded(page)["runs"][0]["missed"].values()))
    assert missed["saw"]["observation"] == printable(HOSTILE)
    assert "49" not in re.findall(r"<p class=\"about\">(.*?)</p>", page)[0].split(" by ")[0]
    assert not re.search(
        r"(src|href|action)\s*=|url\(|@import", re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    )
    assert "default-src 'none'" in page


def test_a_page_holds_no_more_of_what_misses_saw_than_it_may(run: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(as_html, "DETAIL_CHARS", 1000)
    missed = embedded(as_html.render([run], []))["runs"][0]["missed"].values()
    saw = [len(str(one["saw"])) for one in missed if "saw" in one]
    assert 0 < sum(saw) <= 1000 and len(saw) < len(missed)


def test_slices_of_ticks_that_overlap_are_shown_one_after_the_other(tmp_path: Path) -> None:
    events = [*flown(16, 1, lambda k: 20.0)]
    for event in events:
        if event.get("k") == 5 and "spans_ms" in event:
            event["spans_ms"]["decided"] = 65.0  # into the next one's
    run = load([written(tmp_path, iter(events))])[0]
    shown = sorted(e[2:4] for e in as_perfetto.entries(run) if e[1] == "decide")
    assert all(end <= after for (_, end), (after, _) in pairwise(shown))


def test_a_page_says_of_a_miss_all_that_the_record_does(tmp_path: Path) -> None:
    evidence = {"late_ms": 9.5, "explained_ms": 9.0, "decoder": {"state": "T"}, "decoder_gaps": [[1.0, 70.0]]}
    events = [*flown(16, 2, lambda k: 20.0)]
    for event in events:
        if event.get("k") == 5 and "kind" in event:
            event |= {"kind": "miss", "cause": "decide", "subcause": "decoder_stopped", "evidence": evidence}
    events.insert(-1, {"ack": 9, "status": "failed", "why": "fresh", "error": "no fuel", "result": 3, "t_s": 1.0})
    run = load([written(tmp_path, iter(events))])[0]
    (data,) = embedded(as_html.render([run], []))["runs"]
    assert data["missed"]["5"]["evidence"] == evidence
    assert {name: data["missed"]["9"][name] for name in ("error", "result")} == {"error": "no fuel", "result": 3}
    for name, told in {"cause": "execute", "subcause": "failed"}.items():
        assert data["words"][name]["words"][unpacked(data["words"][name]["codes"])[9]] == told
    assert len(unpacked(data["numbers"]["recorded"])) == 32


def test_an_hour_is_a_page_of_under_15_mb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a sixth of it; the page of the whole hour is opened in tests that are slow."""
    monkeypatch.setattr(as_html, "DETAIL_CHARS", as_html.DETAIL_CHARS // 6)
    run = recorded(tmp_path, hz=16, seconds=600, saw=lambda k: f"x {k} " + 300 * "y")
    assert run.report["ticks"] == 9_600
    assert len(as_html.render([run], []).encode()) * 6 < 15e6


def test_several_runs_stand_side_by_side_by_names_that_differ(tmp_path: Path) -> None:
    for hz in (10, 20):
        written(tmp_path / f"{hz}" / "run", flown(hz, 5, lambda k: 20.0))
    runs = load([tmp_path / "10" / "run", tmp_path / "20" / "run" / "record.mcap"])
    assert [run.name for run in runs] == ["10/run", "20/run"]
    page = as_html.render(runs, [])
    assert page.count("<article") == 2 and len(embedded(page)["runs"]) == 2
    compared = re.findall(r'<th scope="row">releases</th><td>(\d+)</td><td>(\d+)</td>', page)
    assert compared == [("50", "100")]


@pytest.mark.parametrize("form", [as_html, as_perfetto])
def test_what_is_made_of_ticks_is_refused_without_one_whatever_is_counted(tmp_path: Path, form: Any) -> None:
    """Of a run whose disk was full the counts are known."""
    run = recorded(tmp_path, seconds=0)
    with pytest.raises(UserError, match="holds no tick"):
        form.render([replace(run, report={**run.report, "releases": 99})], [])


def test_a_run_that_was_held_throughout_says_so_at_the_top_with_what_it_was_told(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    ticks = run.report["ticks"]
    changes = [{"instruction": "go to 0", "t_s": 0.0}, {"instruction": "both of the <b>", "t_s": 2.5}]
    report = {**run.report, "held": ticks, "held_by": {"confidence": ticks - 3, "confirm": 3}}
    unheard = replace(run, report={**report, "instruction_changes": changes})
    page = as_html.render([unheard], [])
    top = page[: page.index('<dl class="figures">')]
    assert "Told &#34;go to 0&#34;, from 2.5 s on &#34;both of the &lt;b&gt;&#34;." in top
    assert f"Held back {ticks} of {ticks} decisions (100.0 %)" in top and "NOT UNDERSTOOD" in top
    few = {**unheard.report, "held": 1, "held_by": {"confirm": 1}}
    assert "waited for a yes 1" in held(few) and "NOT UNDERSTOOD" not in held(few)
    assert held(run.report) == "" and "Held back" not in as_html.render([run], [])


def test_on_time_is_the_same_share_in_page_table_and_junit_and_no_stage_is_named_twice(run: Recorded) -> None:
    report = {**run.report, "releases": run.report["releases"] + 100, "skipped_releases": 100}
    assert (share := on_time_share(report)) == report["on_time"] / report["releases"] < 1
    skipped = replace(run, report=report)
    page = as_html.render([skipped], [])
    assert f"<dt>on time</dt><dd>{100 * share:.2f} %</dd>" in page
    console = Console(file=io.StringIO(), width=200)
    table.show(report, console)
    assert f"({100 * share:.2f} %)" in console.file.getvalue()  # type: ignore[attr-defined]
    (suite,) = JUnitXml.fromstring(as_junit.render([skipped], [parse("misses>=0")]))
    assert {p.name: p.value for p in suite.properties()}["on_time_share"] == f"{share:.6f}"
    stages = page[page.index("Percentiles by stage") : page.index("Worst bursts")]
    rows = re.findall(r'<th scope="row">(.*?)</th>', stages)
    assert "decide" in rows and "queue" in rows and len(rows) == len(set(rows))
