"""Experiments: their forms, the runs that are kept, their corpus and delays."""

from __future__ import annotations

import itertools
import json
import multiprocessing
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from rtcontrol.evaluation.experiments import corpus, delay, judging, kept, schemas, training
from rtcontrol.evaluation.experiments.corpus import ACTIONS, CorpusOptions
from rtcontrol.evaluation.experiments.delay import HISTORY, TICKS, Lateness, demonstrations, expert, fly, text
from rtcontrol.evaluation.experiments.forms import FORMS, Form
from rtcontrol.evaluation.experiments.kept import RESULT, KeptRun
from rtcontrol.evaluation.experiments.runs import BASE
from rtcontrol.evaluation.experiments.training import FormLearner, learner, taken
from rtcontrol.models.data.canonical import check_call
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.loss import tree_loss
from rtcontrol.models.train.packing import pack
from rtcontrol.models.train.rows import Row
from rtcontrol.models.train.scratch import ModelShape

TINY = ModelShape(hidden=32, layers=3, heads=2, kv_heads=2, intermediate=64)
STOPS = CorpusOptions({0: 1, 1: 1})


def made(form: Form) -> FormLearner:
    return learner(replace(BASE, form=form, shape=TINY), 0, training.vocabulary())


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return taken(corpus.samples(11), 60)


def test_heads_one_after_the_other_hold_what_heads_beside_each_other_do(rows: list[Row]) -> None:
    beside, after = made("heads").encoder, made("sequential").encoder
    for row in rows:
        (chain,) = after.encode(row).heads
        heads = beside.encode(row).heads
        asked = [label for label, weight in zip(chain.labels, chain.weights, strict=True) if weight]
        assert asked == [label for head in heads for label in head.labels]
        assert [*chain.ids, chain.labels[-1]] == [i for head in heads for i in (head.ids[0], *head.labels)]
        assert chain.ids[1:] == chain.labels[:-1]  # each is asked for what follows it


def test_json_is_the_call_and_ends_the_turn(rows: list[Row]) -> None:
    learned = made("json")
    for row in rows:
        assert row.call is not None
        encoded = learned.encoder.encode(row)
        (chain,) = encoded.heads
        prompt = learned.heads.suffix(row)
        assert (*encoded.suffix, chain.ids[0]) == prompt and chain.ids[1:] == chain.labels[:-1]
        assert json.loads(learned.heads.tokenizer.decode(list(chain.labels[:-1]))) == row.call.to_dict()
        assert chain.labels[-1] == learned.heads.tokenizer.special_id("<|im_end|>")


def test_a_model_trained_in_json_costs_more_tokens_a_row(rows: list[Row]) -> None:
    each = {form: training.tokens_a_row(made(form).encoder, rows) for form in FORMS}
    assert each["heads"] < each["sequential"] < each["json"]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_counted_as_right_is_what_greedy_decoding_writes(form: Form) -> None:
    learned = made(form)
    optimizer = torch.optim.AdamW(learned.model.parameters(), lr=3e-3)
    shown, samples = corpus.samples(0, STOPS), list(itertools.islice(corpus.samples(1, STOPS), 12))
    right: list[bool] = []
    while not 0 < sum(right) < len(samples):  # some of it is known and some not
        for some in (taken(shown, 16) for _ in range(5)):
            loss, _ = tree_loss(learned.model, pack(learned.encoder.prefix, [learned.encoder.encode(r) for r in some]))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        right = judging.free(learned.model, learned.encoder, judging.allowed(samples))
    assert right == [_written(learned, form, Row(s.instruction, s.observation, s.call)) for s in samples]


def _written(learned: FormLearner, form: Form, row: Row) -> bool:
    """Whether a token after the other, each the likeliest of all, spells the row's call."""
    encoded = learned.encoder.encode(row)
    for head in encoded.heads:
        ids = [*learned.encoder.prefix, *encoded.suffix, head.ids[0]]
        for label, weight in zip(head.labels, head.weights, strict=True):
            with torch.no_grad():
                best = int(learned.model(torch.tensor([ids])).logits[0, -1].argmax())
            ids.append(best if weight else label)  # what starts the next head is given
        if tuple(ids[-len(head.labels) :]) != head.labels:
            return False
    return True


def test_places_of_a_group_are_one_head() -> None:
    apart, together = (
        learner(replace(BASE, grouped=grouped, shape=TINY), 0, training.vocabulary()) for grouped in (False, True)
    )
    go = next(s for s in corpus.samples(0) if s.call.name == "go")
    row = Row(go.instruction, go.observation, go.call)
    assert len(apart.encoder.encode(row).heads) == 3 and len(together.encoder.encode(row).heads) == 2


done: list[int] = []


def counting(number: int, folder: Path) -> dict[str, Any]:
    done.append(number)
    return {"number": number}


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    done.clear()
    run = KeptRun("one", tmp_path / "a", counting, (7,))
    assert run.result() is None
    assert run.do() == run.do() == run.result() == {"number": 7} and done == [7]


def test_a_full_disk_is_told_and_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, packed: bytes) -> int:
        with self.open("wb") as half:
            half.write(packed[:4])
        raise OSError(28, "No space left on device")

    run = KeptRun("one", tmp_path / "a", counting, (7,))
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match="No space left"):
        run.do()
    assert run.result() is None and not [*(tmp_path / "a").iterdir()]


def test_no_checkpoint_is_taken_of_what_is_not_done(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the target: it is not done yet"):
        KeptRun("the target", tmp_path, counting, (1,)).checkpoint()


def breaking(number: int, folder: Path) -> dict[str, Any]:
    raise ZeroDivisionError(number)


def test_of_runs_side_by_side_what_is_whole_stays_where_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forking = multiprocessing.get_context("fork")  # a process that begins anew imports torch again
    monkeypatch.setattr(multiprocessing, "get_context", lambda way: forking)
    good = KeptRun("good", tmp_path / "good", counting, (7,))
    bad = KeptRun("bad", tmp_path / "bad", breaking, (7,))
    told: list[str] = []
    with pytest.raises(ZeroDivisionError):
        kept.do_all([good, bad, good], 1, lambda says, _: told.append(says))
    assert told == ["good"] and (tmp_path / "good" / RESULT).is_file() and bad.result() is None


OPTIONS = (CorpusOptions(), CorpusOptions(places=3), CorpusOptions(held_out=True), CorpusOptions({2: 1, 3: 1}))


@pytest.mark.parametrize("options", OPTIONS)
def test_every_call_that_is_right_is_legal_and_the_experts_is_among_them(options: CorpusOptions) -> None:
    tools = {tool.name: tool for tool in tool_schemas(corpus.tools())}
    for sample in itertools.islice(corpus.samples(3, options), 400):
        assert sample.call in sample.allowed
        for call in sample.allowed:
            check_call(call, tools[call.name])  # raises for what is not
            order = [p.name for p in tools[call.name].parameters if p.name in call.arguments]
            assert list(call.arguments) == order


def test_the_same_seed_is_the_same_corpus_and_another_is_not() -> None:
    one, same, other = (list(itertools.islice(corpus.samples(seed), 50)) for seed in (1, 1, 2))
    assert one == same != other


def test_every_value_is_told_or_seen() -> None:
    for sample in itertools.islice(corpus.samples(4, CorpusOptions(places=2)), 400):
        for name, value in sample.call.arguments.items():
            shown = sample.instruction if sample.kind != "seen" else f"{sample.instruction} {sample.observation}"
            assert str(value) in shown, (name, sample)


def test_orders_of_clauses_that_judge_are_never_trained() -> None:
    def orders(held_out: bool) -> set[str]:
        options = CorpusOptions({4: 1, 5: 1, 6: 1}, held_out=held_out)
        said = {s.order for s in itertools.islice(corpus.samples(5, options), 3_000)}
        return {order for order in said if len(order.split()) > 3}  # of two clauses or more

    trained, held = orders(False), orders(True)
    assert len(trained) > 50 and len(held) > 20 and not trained & held


def test_calls_have_as_many_arguments_as_their_shares_say() -> None:
    shares = {1: 3.0, 6: 1.0}
    counts = Counter(len(s.call.arguments) for s in itertools.islice(corpus.samples(0, CorpusOptions(shares)), 2_000))
    assert set(counts) == {1, 6} and 2.5 < counts[1] / counts[6] < 3.6


def test_of_several_places_each_is_right_and_the_expert_takes_any() -> None:
    options, first = CorpusOptions({2: 1}, places=3), Counter[int]()
    for sample in itertools.islice(corpus.samples(0, options), 2_000):
        if sample.kind == "any":
            assert len(sample.allowed) == 3
            first[sample.allowed.index(sample.call)] += 1
    assert min(first.values()) > 0.25 * first.total()


def test_a_schema_drawn_anew_means_the_same() -> None:
    rng, samples = Random(2), corpus.samples(2)
    for sample in itertools.islice(samples, 200):
        drawn = schemas.draw(rng)
        row = drawn.row(sample)
        assert row.call is not None and {tool.name for tool in row.tools} == {action.name for action in ACTIONS}
        check_call(row.call, next(tool for tool in row.tools if tool.name == row.call.name))
        assert row.call.arguments == {drawn.names[name]: value for name, value in sample.call.arguments.items()}


def test_names_that_judge_are_never_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    few = dict(list(schemas.OTHER.items())[:6])  # so that all choices come up
    monkeypatch.setattr(schemas, "OTHER", {name: few.get(name, name) for name in schemas.OTHER})

    def named(held_out: bool) -> set[tuple[str, ...]]:
        rng = Random(1)
        return {tuple(schemas.draw(rng, held_out).names.values()) for _ in range(600)}

    trained, held = named(False), named(True)
    assert len(trained | held) == 64 and held and not trained & held


def test_a_model_is_trained_for_a_lateness_and_flown_at_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay, "FLOWN", (0, 3))
    found = delay.run(Lateness((0,), 64), 0, tmp_path, episodes=2)
    assert {late: len(ticks) for late, ticks in found["ticks"].items()} == {"0": 2, "3": 2}


def test_the_expert_stands_on_time_and_falls_late() -> None:
    assert fly(None, 0, 8) == [TICKS] * 8
    assert max(fly(None, 3, 8)) < 100


def test_a_late_label_is_what_is_right_when_it_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay, "WORLDS", 1)  # whose rows follow each other
    late = 2
    rows = list(itertools.islice(demonstrations(3, Lateness((late,))), 12))
    checked = 0
    for row, then in zip(rows, rows[late:], strict=False):
        numbers = [int(n) for n in then.observation.split()[1::2]]
        x, v, angle, spin = (n / scale for n, scale in zip(numbers, (100, 100, 1000, 100), strict=True))
        if abs(angle + 0.3 * spin + 0.03 * x + 0.06 * v) > 0.01:  # else rounding decides
            assert row.call == expert((x, v, angle, spin))
            checked += 1
    assert checked > 5


def test_the_history_shows_the_calls_that_acted_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay, "WORLDS", 1)
    monkeypatch.setattr(delay, "NOISE", 0.0)  # what acts is what is right
    rows = list(itertools.islice(demonstrations(1, Lateness((2,))), 15))
    for i, row in enumerate(rows[HISTORY:], start=HISTORY):
        assert row.history == tuple(before.call.text() for before in rows[i - HISTORY : i] if before.call)


def test_what_is_far_is_clamped_to_a_number_that_is_a_word() -> None:
    assert text((-9, 9, 0.2, -9)) == "x -400 v 400 angle 200 spin -400"
