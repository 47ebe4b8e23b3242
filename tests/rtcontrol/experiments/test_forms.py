from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
import torch

from rtcontrol.evaluation.experiments import corpus, judging, training
from rtcontrol.evaluation.experiments.corpus import CorpusOptions
from rtcontrol.evaluation.experiments.forms import FORMS, Form
from rtcontrol.evaluation.experiments.runs import BASE
from rtcontrol.evaluation.experiments.training import FormLearner, learner, taken
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
    shown, samples = corpus.samples(0, STOPS), list(itertools.islice(corpus.samples(1, STOPS), 24))
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
