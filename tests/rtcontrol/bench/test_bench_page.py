"""docs/benchmarks.md and the README's results are what the files say; measuring goes on where it stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused

from rtcontrol.bench import everything
from rtcontrol.bench.hand_kept import FILE, hand_kept
from rtcontrol.bench.page import BEGIN, END, FILES, page, with_table, write
from rtcontrol.bench.readme import results_table
from rtcontrol.models.errors import UserError
from tests.helpers.processes import ROOT

FOLDER = ROOT / "docs" / "benchmarks"


def test_the_page_and_the_readmes_table_are_what_the_files_say() -> None:
    assert (ROOT / "docs" / "benchmarks.md").read_text("utf-8") == page(FOLDER), "run `rtcontrol bench tables`"
    readme = (ROOT / "README.md").read_text("utf-8")
    assert readme == with_table(readme, FOLDER), "run `rtcontrol bench tables`"
    assert len(results_table(FOLDER).splitlines()) == 2 + 6


def test_a_page_of_figures_links_to_nothing_outside_docs() -> None:
    assert "](../" not in "".join(path.read_text("utf-8") for path in (ROOT / "docs").glob("*.md"))


def test_files_are_summaries_that_tell_machine_and_day() -> None:
    for path in {*FOLDER.glob("*.json")} - {FOLDER / "experiments.json"}:  # not of `bench all`
        document = json.loads(path.read_text("utf-8"))
        assert path.stem.removesuffix("-gpu") in FILES and document["measured"] and document["machine"]["torch"]
        machine = document["machine"]
        # Those that tell of a busy machine beside their figures, and that of calls, which has no times.
        told = document.get("busy") or document["bench"] == "equal"
        assert not document["quick"] and (told or machine["load"] < machine["cores"]), (
            f"{path.name}: measure it on a quiet machine"
        )
        assert path.stat().st_size < 20_000 and '"raw' not in path.read_text("utf-8")


def test_a_changed_figure_changes_the_page_and_what_nobody_measured_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "benchmarks"
    shutil.copytree(FOLDER, folder)
    (tmp_path / "README.md").write_text(f"before {BEGIN}{END} after")
    assert {path.name for path in write(folder)} == {"benchmarks.md", "README.md"}
    assert write(folder) == []
    assert (tmp_path / "README.md").read_text().endswith(f"{END} after")
    document = json.loads((folder / "heads.json").read_text())
    document["result"]["ms"]["packed"]["3"]["p50"] = 1234.5
    (folder / "heads.json").write_text(json.dumps(document))
    (folder / "memory.json").unlink()
    written = page(folder)
    assert "| 1234.50 |" in written and "memory: not measured." in written
    assert "GPU: not measured" in written
    # What is kept by hand reaches the page and the README from one place.
    text = (folder / FILE).read_text("utf-8")
    (folder / FILE).write_text(text.replace("p50: 6.19", "p50: 98.76"), "utf-8")
    assert page(folder).count("98.76") == 1 and results_table(folder).count("98.76") == 1
    (folder / FILE).unlink()
    (folder / "decide.json").unlink()
    assert "Kept by hand" not in page(folder) and results_table(folder).count("not measured") == 3
    # A GPU's figures stand in their own column.
    document["result"]["ms"]["packed"]["3"]["p50"] = 0.4321
    (folder / "heads-gpu.json").write_text(json.dumps(document))
    row = next(line for line in page(folder).splitlines() if "1234.50" in line)
    assert row.endswith("| 0.43 |")


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dtype.json").write_text("{")
    assert "Delete it" in refused(capsys, "bench", "tables", "--out", str(tmp_path))
    assert "no folder" in refused(capsys, "bench", "tables", "--out", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("- id: a", "lacks command, machine, measured, title"),
        ("- {id: a, title: t, measured: m, machine: m, command: c, more: x}", "unknown more"),
        ("- {id: a, title: t, measured: m, machine: m, command: c, columns: [a], rows: [[1, 2]]}", "another length"),
        ("- {id: a, title: t, measured: m, machine: m, command: c, text: '{p50}'}", "p50"),
        ("[", "cannot be read"),
    ],
)
def test_an_entry_kept_by_hand_that_lacks_something_is_refused(tmp_path: Path, entry: str, what: str) -> None:
    (tmp_path / FILE).write_text(entry)
    with pytest.raises(UserError, match=what):
        hand_kept(tmp_path)


def test_measuring_everything_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, ran, measured = tmp_path / "figures", list[str](), dict[str, Any]()
    for name in ("decide-paddle", "batch"):
        measure = everything.MEASURES[name]

        def counted(options: everything.BenchOptions, progress: everything.Progress, name=name, measure=measure):  # type: ignore[no-untyped-def]
            ran.append(name)
            if name not in measured:
                measured[name] = measure(options, progress)
            return measured[name]

        monkeypatch.setitem(everything.MEASURES, name, counted)
    assert call("bench", "all", "batch", "--quick", "--out", str(folder)) == 0
    assert call("bench", "all", "batch", "decide-paddle", "--quick", "--out", str(folder)) == 0
    assert ran == ["batch", "decide-paddle"]
    assert "measured already" in capsys.readouterr().out
    assert "a few decisions only" in (tmp_path / "figures.md").read_text()
    assert call("bench", "all", "batch", "--again", "--quick", "--out", str(folder)) == 0
    assert ran == ["batch", "decide-paddle", "batch"]
    assert "Choose decide" in refused(capsys, "bench", "all", "everything")
