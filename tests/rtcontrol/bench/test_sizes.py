"""One decision by sizes: a GPU's bench, tried here with a shape that a CPU decides with at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from commands import refused

from rtcontrol.bench import everything, sizes
from rtcontrol.bench.page import page
from rtcontrol.bench.tables import tables
from rtcontrol.models.train.scratch import ModelShape
from rtcontrol.telemetry.figure_table import markdown
from tests.helpers.processes import ROOT


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "SHAPES", {"tiny": ModelShape(64, 2, 4, 2, 128)})


@pytest.mark.usefixtures("tiny")
def test_every_way_decides_alike_in_the_passes_that_it_needs() -> None:
    told: list[tuple[int, int]] = []
    found = everything.sizes(everything.BenchOptions(threads=1), ("tiny",), 5, lambda *done: told.append(done))
    result = found["shapes"]["tiny"]
    assert result["agreement"] == 1.0 and result["decisions"] == 5 and told[-1] == (15, 15)
    passes = {way: result["tokens"][f"{way}_passes"] for way in ("one_pass", "token_by_token", "json", "hf_json")}
    assert passes["one_pass"] == 1 and 8 <= passes["token_by_token"] <= 9 and passes["json"] == passes["hf_json"] > 40
    assert ("without_graphs" in result["ms"]) == torch.cuda.is_available()
    assert "| tiny | 0 M | " in markdown(tables(found))


def test_a_shape_that_is_none_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert "qwen2.5-0.5b, qwen2.5-1.5b" in refused(capsys, "bench", "sizes", "qwen")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which it is measured")
def test_without_a_gpu_and_without_a_name_nothing_is_measured_for_an_hour(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no GPU" in refused(capsys, "bench", "sizes")
    assert "no GPU" in str(everything.missing("sizes"))


def test_what_is_measured_on_a_gpu_alone_is_shown_with_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    assert "\nsizes: not measured." in page(folder)
    (folder / "sizes-gpu.json").write_bytes((ROOT / "docs" / "benchmarks" / "sizes-gpu.json").read_bytes())
    shown = page(folder)
    assert "| qwen2.5-3b | 2783 M | " in shown and "NVIDIA H100 80GB HBM3; " in shown
    assert "\nsizes: not measured." not in shown
