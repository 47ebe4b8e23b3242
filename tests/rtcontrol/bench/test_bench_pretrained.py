"""`rtcontrol bench pretrained` and `bench equal`: what they compare is the same, and a difference is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from rtcontrol.bench import equal, everything, pretrained
from rtcontrol.bench.drawn import drawn
from rtcontrol.bench.options import BenchOptions
from rtcontrol.bench.pretrained import OneDtype, check_dtypes, dtypes_here
from rtcontrol.bench.situations import schemas, situations
from rtcontrol.bench.tables import tables
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.lean import LeanModel
from tests.models.small import build_checkpoint


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random one, whose window is shorter than any prompt."""
    return build_checkpoint(tmp_path_factory.mktemp("small") / "gemma", "gemma3")


def test_all_ways_take_the_same_tokens_behind_the_same_cached_ones(
    gemma: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[tuple[int, int]]] = {"pass": [], "bare": [], "theirs": []}
    forward = LeanModel.forward

    def watched(self: LeanModel, tokens: list[int], positions: list[int], parts: list[Any]) -> torch.Tensor:
        seen["bare" if parts[0].mask is None else "pass"].append((len(tokens), parts[0].past))
        return forward(self, tokens, positions, parts)

    monkeypatch.setattr(LeanModel, "forward", watched)
    one = OneDtype(DeciderSpec(str(gemma), tuple(schemas("lander")["bundled"]), dtype="fp32"))
    theirs = pretrained.HFForward(gemma, torch.float32)
    for situation in situations("lander", 3):
        run, call, _ = one.prepare(situation)
        theirs.start(one.past)
        for times in seen.values():
            times.clear()
        run()
        assert one.session.decide(situation.observation, situation.instruction).call == call
        passes = seen["pass"]
        # Where a decision takes several passes, the floor holds their tokens in one.
        assert seen["bare"] == [(sum(n for n, _ in passes), passes[0][1])] == [(len(one.tokens), len(one.past))]
        assert theirs.states(one.tokens).shape[1] == len(one.tokens)
        theirs.drop(len(one.tokens))
        assert theirs.scores(one.tokens).shape[1] == 1
        theirs.drop(len(one.tokens))


def test_each_dtype_has_its_ways_ratios_and_calls_equal_to_fp32s(gemma: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "WARM_UP", 1)  # its times are not judged here
    found = everything.pretrained(
        BenchOptions(agent="lander", threads=1), [str(gemma)], 3, dtypes_here(), lambda done, total: None
    )
    (result,) = found["models"].values()
    assert result["equal"]["fp32"] == result["decisions"] and result["ratios"].keys() == set(dtypes_here())
    assert "fp32 hf_scores" in result["ms"] and "int8 hf" not in result["ms"]
    first, second = tables(found)
    assert len(first.rows) == len(dtypes_here()) and len(second.rows) == 2 and "2 layers" in first.rows[0][0]


def test_a_dtype_that_is_not_here_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="no dtype 'fp8'"):
        check_dtypes(["fp32", "fp8"])


def test_what_is_drawn_depends_on_seed_and_number_alone() -> None:
    some = list(drawn(45, 3))
    assert some == list(drawn(90, 3))[:45] and some != list(drawn(45, 4))
    assert len({json.dumps(one.tools) for one in some}) == 3
    assert (
        max(len(one.observation.split()) for one in some) > 350 > 40 > min(len(one.observation.split()) for one in some)
    )


def test_packed_calls_equal_the_judges_and_a_run_goes_on_where_it_was(gemma: Path, tmp_path: Path) -> None:
    folder, keep, done = gemma, tmp_path / "kept.jsonl", list[int]()
    of = (str(folder), ("fp32",))
    found = equal.bench_equal(*of, 6, 1, 1, keep, lambda n, total: done.append(n))
    near = found["dtypes"]["fp32"]
    assert near["differ_without_near_tie"] == 0 and done == [*range(7)]
    lines = keep.read_text().splitlines()
    keep.write_text("\n".join([*lines[:4], lines[4][:20]]))  # cut off in the middle of a line
    done.clear()
    again = equal.bench_equal(*of, 6, 1, 1, keep, lambda n, total: done.append(n))
    assert done == [3, 4, 5, 6] and keep.read_text().splitlines() == lines
    assert again == found
    with pytest.raises(UserError, match="of another model, seed or dtype"):
        equal.bench_equal(*of, 6, 2, 1, keep, lambda n, total: None)


def test_a_call_that_differs_is_told_with_both_calls_and_its_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build_checkpoint(tmp_path / "model")
    scores = LeanModel.logits
    monkeypatch.setattr(LeanModel, "logits", lambda self, *given: -scores(self, *given))  # the worst of all
    result = equal.bench_equal(str(folder), ("fp32",), 4, 1, 1, None, lambda n, total: None)
    one = result["dtypes"]["fp32"]
    assert one["equal"] < 4 and len(one["others"]) == 4 - one["equal"]
    assert all(other["judge"] != other["ours"] and other["lead"] > 0 for other in one["others"])
    summary, apart = tables({"bench": "equal", "model": "small", "result": result})
    assert summary.rows[0][1] == f"{one['equal']} of 4" and len(apart.rows) == len(one["others"])


@pytest.mark.slow
def test_gemmas_packed_calls_equal_hugging_faces_token_by_token() -> None:
    if not Path(os.environ.get(pretrained.VARIABLE, "")).is_file():
        pytest.skip("RTCONTROL_GEMMA names no GGUF file of Gemma 3 270M")
    with pretrained.gemmas((18,)) as (folder,):
        found = equal.bench_equal(folder, ("fp32",), 24, 7, 1, None, lambda n, total: None)
    assert found["prompt_tokens"][-1] > found["window"]
    assert found["dtypes"]["fp32"]["differ_without_near_tie"] == 0
