"""A record of bounded size is written in parts; what is left of it reports every tick that ever was."""

from __future__ import annotations

import base64
import json
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cart import Flight, slow
from mcap.reader import make_reader

from rtcontrol.models.errors import UserError
from rtcontrol.record.folder import older_part, older_parts
from rtcontrol.record.pictures import Pictures
from rtcontrol.record.reading import read_record
from rtcontrol.record.recorder import Recorder
from rtcontrol.record.rows import rows
from rtcontrol.report import report
from rtcontrol.report.account import Account
from tests.helpers.disks import files_of
from tests.helpers.processes import until

MOST = 200_000
HEADER = {"hz": 16.0, "started_at": "now"}


def events(ticks: int, seed: int = 0) -> list[dict[str, Any]]:
    """Of a run with misses, late decisions, acknowledgements and errors, and observations that cannot be compressed."""
    chance, made, k = random.Random(seed), [], 0
    for _ in range(ticks):
        fate = chance.randrange(8)
        k += fate == 1
        seen = {"k": k, "t_s": k / 16, "seq": k, "epoch": 1, "instruction": "go", "history": [], "data": None}
        made.append({**seen, "observation": chance.randbytes(200).hex()})
        tick = {"k": k, "t_s": k / 16, "kind": "call", "call": "f()", "superseded": 1, "latency_ms": chance.random()}
        tick |= {"passes": 1, "tokens": chance.randrange(9), "wake_ms": chance.random()}
        if fate == 0:
            tick |= {"kind": "miss", "cause": "decide", "subcause": "queued", "error": "ValueError: no", "where": "a:1"}
        elif fate == 1:
            tick |= {"skipped": 1, "skip_cause": "wake", "kind": "null"}
        made.append(tick)
        if fate == 0:
            made.append({"late": k, "used": False, "decide_ms": 70.0, "cause": "host", "subcause": "lost"})
        elif fate == 2:
            made.append({"ack": k, "status": "expired", "t_s": k / 16})
        k += 1
    return made


def counted(account: Account) -> dict[str, Any]:
    return {name: value for name, value in report.build(account, "").items() if name != "record"}


def recorded(path: Path, most: int = MOST) -> tuple[Recorder, Account]:
    recorder, account = Recorder(path, HEADER, most=most), Account()
    account.add({"header": recorder.header})
    recorder.fold, recorder.state = account.add, account.state
    return recorder, account


def flush(recorder: Recorder) -> None:
    recorder._due.set()
    until(lambda: not recorder._queue and not recorder._taken)


def on_disk(path: Path) -> int:
    total = 0
    for part in [*older_parts(path), path]:
        with suppress(FileNotFoundError):
            total += part.stat().st_size
    return total


def test_the_oldest_parts_go_and_the_report_of_the_rest_counts_every_tick(tmp_path: Path) -> None:
    path = tmp_path / "record.mcap"
    recorder, live = recorded(path)
    for i, event in enumerate(events(2000)):
        recorder.write(event)
        if i % 100 == 0:
            flush(recorder)
            assert on_disk(path) <= MOST
    recorder.close()
    live.check()
    assert recorder.lost == 0 and not older_part(path, 1).exists()
    assert MOST // 2 < sum(p.stat().st_size for p in tmp_path.iterdir()) <= MOST
    left = [event for event in read_record(path) if "kind" in event]
    made = report.of_record(path)
    assert 0 < made["record"]["ticks_from"] == recorder.ticks_from <= left[0]["k"]
    assert left[0]["k"] <= recorder.ticks_from + 1
    offline = Account()
    for event in read_record(path):
        offline.add(event)
    offline.check()
    assert counted(offline) == counted(live) and live.ticks == 2000


def test_each_part_is_a_whole_file_that_begins_with_its_header_and_account(tmp_path: Path) -> None:
    path = tmp_path / "record.mcap"
    recorder, _ = recorded(path, 10**6)
    began_ns = time.monotonic_ns()
    for i, event in enumerate(events(1600)):
        recorder._queue.append((began_ns + i, event))  # as if written while the part before was ended
        if i % 100 == 0:
            flush(recorder)
    recorder.close()
    parts = [*older_parts(path), path]
    assert len(parts) > 2
    for i, part in enumerate(parts):
        with part.open("rb") as file:
            said = [json.loads(m.data) for _, _, m in make_reader(file, validate_crcs=True).iter_messages()]
        assert said[0]["header"]["hz"] == 16.0
        assert ("account" in said[1]) == (i > 0)
        assert report.of_record(part)["ticks"] > 0
    # Nothing was removed: they hold each event once.
    assert [e for e in read_record(path) if not {"header", "account"} & set(e)] == events(1600)
    assert report.of_record(path)["record"]["ticks_from"] == 0


@pytest.mark.parametrize("room", [26_000, 31_000])
def test_a_disk_that_is_full_between_two_parts_costs_no_event_and_counts_none_twice(tmp_path: Path, room: int) -> None:
    path = tmp_path / "record.mcap"
    recorder, live = recorded(path)
    made = events(260)
    for event in made[:300]:
        recorder.write(event)
    flush(recorder)
    with files_of(room):
        for event in made[300:]:
            recorder.write(event)
            recorder._due.set()
            time.sleep(0.0005)
        assert recorder._ended is not None and recorder.lost
    recorder.close()
    assert recorder.lost == 0
    offline = Account()
    for event in read_record(path):
        offline.add(event)
    assert counted(offline) == counted(live)


@pytest.mark.parametrize("seed", range(3))
def test_an_account_goes_on_from_its_state_as_if_it_had_seen_it_all(seed: int) -> None:
    made, whole = events(120, seed), Account()
    for event in made:
        whole.add(event)
    for cut in range(0, len(made), 17):
        before, after = Account(), Account()
        for event in made[:cut]:
            before.add(event)
        state = json.loads(json.dumps(before.state()))
        # Restored over another's counts, too: each part of a record tells it anew.
        for event in events(50, seed + 100):
            after.add(event)
        after.add({"account": state})
        for event in made[cut:]:
            after.add(event)
        after.check()
        assert counted(after) == counted(whole)


def test_a_new_run_in_the_folder_removes_the_parts_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "record.mcap"
    for number in (1, 2, 10):
        older_part(path, number).touch()
    other = tmp_path / "record-2.0001.mcap"
    other.touch()
    assert [p.name for p in older_parts(path)] == ["record.0001.mcap", "record.0002.mcap", "record.0010.mcap"]
    recorder = Recorder(path, HEADER, provisional=True)
    assert older_parts(path), "it may never begin"
    recorder.keep()
    assert not older_parts(path) and other.exists()
    recorder.close()


@pytest.mark.parametrize("data", [{1: {2}}, {(1, 2): 3}, {"a": np.arange(3), "b": np.zeros((100, 100))}, [1], "round"])
def test_what_a_world_shows_may_be_anything(tmp_path: Path, data: Any) -> None:
    recorder = Recorder(tmp_path / "record.mcap", HEADER)
    if data == "round":
        data = {}
        data["me"] = data
    recorder.write({"observation": "x", "k": 0, "data": data})
    recorder.write({"log": "after"})
    recorder.close()
    _, seen, after = read_record(tmp_path / "record.mcap")
    assert after == {"log": "after"}
    if isinstance(data, dict) and "a" in data:
        assert seen["data"] == {"a": [0, 1, 2], "b": {"dtype": "float64", "shape": [100, 100]}}
    elif isinstance(data, dict) and 1 not in data:
        assert set(seen["data"]) == {"unreadable"}


@pytest.mark.realtime
def test_header_observation_and_call_make_a_row_of_every_tick_on_time(tmp_path: Path) -> None:
    flight = Flight(tmp_path, slow(0.05, lambda k: k in (5, 6))).run()
    made, account = [*rows(flight.lines)], flight.loop.account
    assert len(made) == account.on_time > 10
    texts = [line["call"] for line in flight.ticks if line["kind"] == "call" and "cause" not in line]
    assert [f"push(force={row['call']['arguments']['force']})" for row in made] == texts
    assert made[0]["instruction"] == "go to 0" and made[0]["observation"].startswith("x ")
    assert made[0]["tools"] == flight.agent.tools.openai() and made[-1]["history"] == texts[-4:-1]
    looks = [line for line in flight.lines if "observation" in line]
    assert all(line["observation"] == flight.agent.observe(line["data"]) for line in looks)
    safe = [line for line in flight.lines if line.get("called") and line["why"] == "safe"]
    assert [line["arguments"] for line in safe] == [{"force": 0}]


def test_record_observations_no_keeps_neither_text_nor_data_nor_history(tmp_path: Path) -> None:
    flight = Flight(tmp_path, record_observations="no", duration_s=0.2).run()
    assert flight.ticks and not any({"observation", "data", "history"} & set(line) for line in flight.lines)
    assert any("called" in line for line in flight.lines)
    assert not [*rows(flight.lines)]


def test_what_people_are_told_is_in_the_record(tmp_path: Path) -> None:
    flight = Flight(tmp_path)
    flight.loop.instruct("go to 1")
    flight.run()
    assert flight.said and [line["log"] for line in flight.lines if "log" in line] == flight.said


def test_a_later_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text(json.dumps({"header": {}, "schema_version": 3}))
    with pytest.raises(UserError, match=r"format 3.*up to 2"):
        [*read_record(path)]


def test_pictures_are_drawn_at_their_rate_as_viewers_read_them(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "record.mcap", HEADER)
    recorder.pictures = Pictures(lambda epoch, data: f"{epoch} {data['x']}".encode(), 10)
    for k in range(50):
        recorder._queue.append((k * 20_000_000, {"observation": "x", "k": k, "epoch": 2, "data": {"x": k}}))
    recorder.write({"observation": "x", "k": 50, "epoch": 2, "data": None})
    recorder.close()
    with (tmp_path / "record.mcap").open("rb") as file:
        found = [*make_reader(file).iter_messages(topics=["/picture"])]
    assert {schema.name for schema, _, _ in found if schema} == {"foxglove.CompressedImage"}
    shown = [json.loads(message.data) for _, _, message in found]
    assert [base64.b64decode(one["data"]).decode() for one in shown] == [f"2 {k}" for k in range(0, 50, 5)]
    assert shown[0]["timestamp"].keys() == {"sec", "nsec"} and shown[0]["format"] == "png"
