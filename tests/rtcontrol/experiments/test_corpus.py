from __future__ import annotations

import itertools
from collections import Counter
from random import Random

import pytest

from rtcontrol.evaluation.experiments import corpus, schemas
from rtcontrol.evaluation.experiments.corpus import ACTIONS, CorpusOptions
from rtcontrol.models.data.canonical import check_call
from rtcontrol.models.schema.tool_schema import tool_schemas

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
