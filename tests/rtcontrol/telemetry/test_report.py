"""Tests of `rtcontrol report`: gates, formats, figures from the counts, and the HTML page."""

from __future__ import annotations

import base64
import json
import random
import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from synthetic import header, recorded, synthetic, two_humps, written

from rtcontrol.hosts.protocol import LOSSES
from rtcontrol.records import SPANS
from rtcontrol.telemetry import as_html, as_perfetto, timeline
from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.causes import CAUSES, COLOURS, NAMES, advice
from rtcontrol.telemetry.recorded import RecordedRun, format_json, load_runs, parse_gate
from rtcontrol.telemetry.report import report_lines
from rtcontrol_client.console import printable
from rtcontrol_client.wire.messages import Hello, Program
from tests.helpers.processes import ROOT
from tests.rtcontrol.gateway.chromium import Chromium, in_chromium

TICK = {"kind": "null", "t_s": 0.0, "superseded": 0}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return written(tmp_path / "run", synthetic(16, 5, two_humps(3)))


@pytest.mark.parametrize(("name", "file"), [("html", "report.html"), ("perfetto", "report.pftrace")])
def test_file_formats_are_written_next_to_the_record(
    run: Path, name: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("report", str(run), "--format", name) == 0
    assert (run / file).stat().st_size > 100
    (run / file).unlink()
    (run / file).mkdir()
    assert "cannot be written" in refused(capsys, "report", str(run), "--format", name)


@pytest.mark.parametrize("name", ["terminal", "json", "perfetto", "html"])
def test_failed_gate_gives_status_3_in_every_format(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("report", str(run), "--format", name, "--gate", "releases==80") == 0
    gates = ("--gate", "releases==80", "--gate", "miss_rate<=0.001")
    assert call("report", str(run), "--format", name, *gates) == 3
    assert "miss_rate<=0.001: DOES NOT HOLD" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("events", "options", "error"),
    [
        ([{"header": {"hz": 16}}, {**TICK, "k": 0}], (), "tick numbers are missing or invalid"),
        ([{"header": header(16)}, {**TICK, "k": 1 << 40}], ("--format", "html"), "tick numbers are missing or invalid"),
        (synthetic(16, 0, lambda k: 20.0), ("--gate", "misses==0"), "has no ticks"),
        (synthetic(16, 1, lambda k: 20.0), ("--gate", "mis_rate<=0.005"), "the report has no number mis_rate"),
        (synthetic(16, 1, lambda k: 20.0), ("--gate", "miss_rate"), "is not a gate"),
        (synthetic(16, 1, lambda k: 20.0), ("nothing",), "has no record of a run"),
    ],
)
def test_unreportable_record_is_refused(
    events: Any, options: tuple[str, ...], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error in refused(capsys, "report", str(written(tmp_path, iter(events))), *options)


def test_table_shows_causes_sub_causes_and_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [*synthetic(16, 2, lambda k: 70.0 if k == 5 else 20.0)]
    events.insert(-1, {"ack": 9, "status": "failed", "why": "fresh", "error": "no [fuel]", "t_s": 1.0})
    assert call("report", str(written(tmp_path, iter(events)))) == 0
    said = capsys.readouterr().out
    assert "misses by cause: decide 1 (decoder_slow 1), execute 1 (failed 1)" in said.replace("\n", " ")
    assert "calls at the client: failed 1" in said
    assert "1 x ack: no [fuel]" in said


# By ZeroMQ or by WebSocket: what a client calls itself is its world's and its agent's name, and stands in `wire`.
def test_name_of_a_client_forges_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "arm\x1b[2J\r\nFORGED: 0 misses\x9b31m\x85\u2028\u202e"
    client = Hello(protocol=[1, 1], client=Program(name=name), t_client_ns=0, agent="lander").client
    events = [*synthetic(16, 1, lambda k: 20.0)]
    events[0]["header"] |= {"env": client.name, "agent": client.name, "wire": {"client": client.model_dump()}}
    folder = written(tmp_path, iter(events))
    for more in ((), ("--format", "html")):
        assert call("report", str(folder), *more) == 0
        told = (folder / "report.html").read_text() if more else "".join(capsys.readouterr())
        assert r"arm\x1b[2J" in told and set(told) <= {"\n", *filter(str.isprintable, told)}
        assert not [line for line in told.split("\n") if line.startswith("FORGED")]


REPORT: dict[str, Any] = {
    "env": "cart",
    "releases": 100,
    "miss_rate": 0.01,
    "judged": True,
    "pipeline": 1,
    "misses_by_cause": {"decide": 1},
    "misses_by_subcause": {"decide.queued": 1},
    "latency_ms": {"p50": 12.5, "p99": 40.0},
    "jitter_ms": {"p50": None},
    "max_age_ms": None,
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("miss_rate<=0.01", True),
        (" latency_ms.p99 <= 4e1 ", True),
        ("latency_ms.p50>=13", False),
        ("releases!=100", False),
        ("misses_by_cause.decide>0", True),
        # What did not happen is counted as nothing.
        ("misses_by_cause.host==0", True),
        ("misses_by_subcause.decide.queued<=0", False),
        ("misses_by_subcause.pause.gc==0", True),
        # Nothing was measured: that is no reason to pass.
        ("jitter_ms.p50<=1000", False),
    ],
)
def test_gate_compares_a_number_of_the_report(text: str, holds: bool) -> None:
    assert parse_gate(text).holds(REPORT) is holds


def test_gates_and_page_know_causes_and_stamps() -> None:
    rows, cause = {}, ""
    for line in (ROOT / "docs/deadlines.md").read_text().splitlines():
        cells = [cell.strip(" `") for cell in line.split("|")]
        if line.startswith("| ") and len(cells) == 5:
            cause = cells[1] or cause
            rows.setdefault(cause, []).extend(cells[2].replace("`", "").split(", "))
    for name, entry in CAUSES.items():
        subcauses = entry.subcauses
        assert parse_gate(f"misses_by_cause.{name}==0").holds({"misses_by_cause": {}})
        for subcause in subcauses:
            assert parse_gate(f"misses_by_subcause.{name}.{subcause}==0").holds({"misses_by_subcause": {}})
        assert {*filter(None, rows[name])} == {*subcauses}
    assert timeline.SPANS == SPANS


def test_every_subcause_has_a_meaning_and_a_hint() -> None:
    source = "".join(path.read_text() for path in (ROOT / "rtcontrol/loop").glob("*.py"))
    named = {f"{cause.lower()}.{sub}" for cause, sub in re.findall(r'Cause\.([A-Z_]+), "(\w+)"', source)}
    named |= {f"decide.{loss}" for loss in LOSSES} | {
        f"execute.{status}" for status in ("expired", "refused", "failed")
    }
    assert named <= NAMES and {*COLOURS} == {*CAUSES}
    advices = {name: advice(name) for name in (*NAMES, "unknown")}
    assert len({*advices.values()}) == len(advices), "no two sub-causes have the same advice"
    for meaning, hint in advices.values():
        assert meaning and hint[0].isupper() and hint.endswith(".") and "sub-causes" not in hint


def test_report_has_a_hint_for_each_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [*synthetic(16, 2, lambda k: 70.0 if k == 5 else 20.0)]
    late = next(event for event in events if event.get("k") == 9 and "kind" in event)
    late |= {"skipped": 0, "skip_cause": "pause", "skip_subcause": "stopped"}
    late = next(event for event in events if event.get("k") == 6 and "kind" in event)
    late |= {"k": 6, "kind": "miss", "cause": "unknown"}
    late.pop("subcause", None)
    folder = written(tmp_path, iter(events))
    assert call("report", str(folder)) == 0
    shown = capsys.readouterr().out
    assert f"decide.decoder_slow 1: {'. Do this: '.join(advice('decide.decoder_slow'))}" in shown
    assert f"unknown 1: {'. Do this: '.join(advice('unknown'))}" in shown
    (run,) = load_runs([folder])
    assert json.loads(format_json([run], []))["advice"][0]["hint"] == advice(run.report["advice"][0]["name"]).hint
    assert advice("decide.decoder_slow").hint in as_html.render_page([run], [])


def test_each_instruction_has_a_row_of_its_ticks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [*synthetic(16, 2, lambda k: 70.0 if k == 20 else 20.0)]
    change = next(i for i, event in enumerate(events) if event.get("k") == 10 and "observation" in event)
    events.insert(change, {"instruction": "go to 1", "t_s": 0.6251})
    held = next(event for event in events if event.get("k") == 30 and "kind" in event)
    held |= {"kind": "held", "why": "confidence"}
    events.insert(-1, {"called": "stop", "arguments": {}, "k": 31, "why": "safe", "t_s": 2.0})
    events.insert(-1, {"ack": 29, "status": "failed", "why": "fresh", "t_s": 1.9})
    (run,) = load_runs([written(tmp_path, iter(events))])
    first, second = run.report["instructions"]
    assert first == {"instruction": "go to 0", "ticks": 10, "on_time": 10, "held": 0, "misses": 0, "skipped": 0} | {
        "called": {"push": 10}
    }
    assert (second["ticks"], second["on_time"], second["held"], second["misses"]) == (22, 20, 1, 2)
    assert second["ticks"] + first["ticks"] == run.report["ticks"] and [*second["called"]] == ["push"]
    assert call("report", str(tmp_path)) == 0
    assert re.search(r"go to 1 +22 +20 +1 +2 +0 +push \d+", capsys.readouterr().out)
    assert re.search(r">go to 1</th><td>22</td><td>20</td>", as_html.render_page([run], []))


def test_legend_has_every_mark_of_the_charts(run_shown: RecordedRun) -> None:
    page = as_html.render_page([run_shown], [])
    style = (ROOT / "rtcontrol/telemetry/page/report.css").read_text()
    for name, text in as_html.LEGEND.items():
        assert f'<i class="{name}"></i>{text}' in page and re.search(rf"\.{name}[ ,]", style)


def test_every_format_takes_a_record_without_first_parts(tmp_path: Path) -> None:
    made = synthetic(16, 60, two_humps(3), saw=lambda k: random.Random(k).randbytes(400).hex())
    (run,) = load_runs([written(tmp_path, made, most=200_000)])
    ticks = run.timeline.k
    assert 0 < run.report["record"]["ticks_from"] == ticks[0] and ticks[-1] - ticks[0] == len(ticks) - 1
    gates = [parse_gate(f"releases=={len(ticks)}")]
    assert len(as_html.render_page([run], gates)) > 1000 and len(as_perfetto.render_trace([run])) > 1000
    assert json.loads(format_json([run], gates))["gates"][0]["holds"]


def test_safe_calls_before_the_exit_are_counted() -> None:
    account = Account()
    for why in ("miss", "loop", "pause", "stop", "exit"):
        for in_force in (False, True):  # the first try fails
            account.add({"safe": "push(force=0)", "why": why, "t_s": 1.0, "in_force": in_force})
    assert account.counts["safe_calls"] == 4


HOSTILE = "</script><script>alert(1)</script><!-- & \" ' {{ 7 * 7 }} \u2028"


@pytest.fixture(scope="module")
def run_shown(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return recorded(tmp_path_factory.mktemp("run"))


def embedded(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def unpacked(column: dict[str, str]) -> tuple[Any, ...]:
    data = base64.b64decode(column["data"])
    size, code = {"u1": (1, "B"), "u2": (2, "H"), "u4": (4, "I"), "f4": (4, "f")}[column["kind"]]
    return struct.unpack(f"<{len(data) // size}{code}", data)


def test_trace_has_a_track_a_thread(run_shown: RecordedRun) -> None:
    trace = Trace.FromString(as_perfetto.render_trace([run_shown]))
    names = {
        p.track_descriptor.uuid: p.track_descriptor.thread.thread_name
        for p in trace.packet
        if p.HasField("track_descriptor")
    }
    assert {*names.values()} >= {"loop", "decoder", "actuator", "world"}
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
    acted = run_shown.timeline.account.times["execute_ms"].count
    assert counts["actuator", "execute"] == acted and counts["loop", "observe"] == run_shown.report["ticks"]
    assert counts["decoder", "decide"] == run_shown.timeline.account.times["decide_ms"].count == len(decided)
    assert abs(max(decided) / 1e6 - run_shown.report["decide_ms"]["max"]) < 0.01
    assert counts["world", "observation"] == run_shown.report["ticks"]
    missed = sum(n for (track, name), n in counts.items() if track == "ticks" and name.startswith("decide."))
    assert missed == run_shown.report["misses_by_cause"]["decide"]


def test_page_contains_every_tick_with_its_cause(run_shown: RecordedRun) -> None:
    page = as_html.render_page([run_shown], [parse_gate("misses==0")])
    (data,) = embedded(page)["runs"]
    assert list(unpacked(data["k"])) == [*run_shown.timeline.k]
    causes = [data["words"]["cause"]["words"][c] for c in unpacked(data["words"]["cause"]["codes"])]
    missed = [row for row, cause in enumerate(causes) if cause]
    assert len(missed) == run_shown.report["misses"] == len(data["missed"])
    proven = {k: one["evidence"] for k, one in run_shown.timeline.details.items() if "evidence" in one}
    first = data["missed"][str(missed[0])]
    assert proven and {k: data["missed"][str(k)]["evidence"] for k in proven} == proven
    assert first["saw"]["observation"] == f"x {run_shown.timeline.k[missed[0]]}"
    for k, row in zip(unpacked(data["numbers"]["decided"]), range(len(causes)), strict=True):
        assert k == pytest.approx(run_shown.timeline.numbers["decided"][row], rel=1e-6, nan_ok=True)
    assert "misses==0" in page and 'class="fails"' in page
    assert not data["marks"], "nothing but ticks befell it"


def test_text_of_a_record_is_never_markup(tmp_path: Path) -> None:
    run_shown = recorded(tmp_path, saw=lambda k: HOSTILE, env=HOSTILE, instruction=HOSTILE)
    page = as_html.render_page([run_shown], [])
    assert "alert(1)</script>" not in page
    assert page.count("<script") == page.count("</script>") == 4
    missed = next(iter(embedded(page)["runs"][0]["missed"].values()))
    assert missed["saw"]["observation"] == printable(HOSTILE)
    assert "49" not in re.findall(r"<dl class=\"lines\">\s*<dt>(.*?)</dt>", page)[0]
    assert not re.search(
        r"(src|href|action)\s*=|url\(|@import", re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    )
    assert "default-src 'none'" in page


def test_several_runs_are_side_by_side(tmp_path: Path) -> None:
    for hz in (10, 20):
        written(tmp_path / f"{hz}" / "run", synthetic(hz, 5, lambda k: 20.0))
    runs = load_runs([tmp_path / "10" / "run", tmp_path / "20" / "run" / "record.mcap"])
    assert [run_shown.name for run_shown in runs] == ["10/run", "20/run"]
    page = as_html.render_page(runs, [])
    assert page.count("<article") == 2 and len(embedded(page)["runs"]) == 2
    compared = re.findall(r'<th scope="row">releases</th><td>(\d+)</td><td>(\d+)</td>', page)
    assert compared == [("50", "100")]


def test_report_shows_run_that_was_held_throughout(run_shown: RecordedRun) -> None:
    ticks = run_shown.report["ticks"]
    for by, hint in ({"confidence": ticks}, "the instruction is NOT UNDERSTOOD"), ({"confirm": ticks}, ""):
        held = {line.label: line for line in report_lines(run_shown.report | {"held": ticks, "held_by": by})}[
            "held back"
        ]
        assert f"{ticks} of {ticks} decisions" in held.value and held.hint == hint
        on_time = next(line for line in report_lines(run_shown.report | {"held": ticks}) if line.label == "on time")
        assert on_time.value.endswith("BUT 100% of the decisions were held back")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chromium]:
    with Chromium(tmp_path / "profile") as page:
        yield page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.html").write_text(as_html.render_page([recorded(folder, seconds=60)], []))
    return (folder / "page.html").as_uri()


@pytest.mark.slow
@in_chromium
def test_misses_are_browsed_by_keyboard_alone(browser: Chromium, page: str) -> None:
    browser.open(page)
    browser.until("rtcontrol.opened_ms > 0")
    while browser.value("document.activeElement.className") != "chart timeline":
        browser.key("Tab")
    browser.key("ArrowRight")
    first = browser.value("document.querySelector('.detail').textContent")
    assert "missed: decide" in first and "saw" in first and "fallback" in first
    browser.key("ArrowRight")
    assert browser.value("document.querySelector('.detail').textContent") != first
    browser.key("ArrowLeft")
    assert browser.value("document.querySelector('.detail').textContent") == first
    browser.key("Escape")
    assert browser.value("document.querySelector('.detail').textContent") == ""
    assert browser.errors == []
