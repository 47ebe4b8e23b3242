"""The experiments: of each its arms, each a setting that is trained from several seeds. What two have in common is
trained once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rtcontrol.experiments.corpus import CorpusOptions
from rtcontrol.experiments.forms import FORMS, Form
from rtcontrol.experiments.training import PLAIN, Setting
from rtcontrol.models.train.finetune.config import FinetuneRecipe
from rtcontrol.models.train.rows import LossWeights
from rtcontrol.models.train.scratch import ModelShape

TOKENS = 0.4e6
# Shares of calls by their number of arguments: all alike, and as one finds them (most functions take one or two).
SKEWED: Mapping[int, float] = {0: 1, 1: 40, 2: 35, 3: 15, 4: 6, 5: 2, 6: 1}
# Tools that take a place, and others of as many arguments.
PLACES: Mapping[int, float] = {2: 1, 3: 1}
FLAT = LossWeights(1.0, (1.0,) * 6, 1.0)
PAPER = FinetuneRecipe().weights()
BASE = Setting(TOKENS)
JSON = replace(BASE, form="json", weights=replace(PLAIN, end=0.1))  # its best form
DRAFT = ModelShape(hidden=64, layers=3, heads=2, kv_heads=2, intermediate=128)


@dataclass(frozen=True)
class Experiment:
    """`asks`: the question. `arms` by the name that a table has."""

    asks: str
    arms: Mapping[str, Setting]


def _places(count: int, **more: object) -> Setting:
    corpus = CorpusOptions(PLACES, places=count)
    return replace(BASE, corpus=corpus, **more)  # type: ignore[arg-type]


def _weights(weights: LossWeights) -> Setting:
    return replace(BASE, weights=weights, all_heads=True)


def _rates(form: Form) -> dict[str, Setting]:
    base = JSON if form == "json" else BASE
    return {f"{form}, {rate:g}": replace(base, form=form, rate=rate) for rate in (1e-3, 2e-3, 4e-3)}


EXPERIMENTS: Mapping[str, Experiment] = {
    "rates": Experiment(
        "Which learning rate does each form want? (One seed, which nothing else has.)",
        {arm: setting for form in FORMS for arm, setting in _rates(form).items()},
    ),
    "forms": Experiment(
        "Are calls by heads as often right as calls in JSON, at equal training tokens?",
        {
            "heads": BASE,
            "sequential heads": replace(BASE, form="sequential"),
            "JSON": JSON,
            "JSON, twice the tokens": replace(JSON, tokens=2 * TOKENS),
            "JSON, at a rate of 0.004": replace(JSON, rate=4e-3),
        },
    ),
    "independence": Experiment(
        "Where several calls are right and an expert picks one: what do heads do that do not see each other?",
        {
            "1 place, heads": _places(1),
            "1 place, x and y in one head": _places(1, grouped=True),
            "3 places, heads": _places(3),
            "3 places, x and y in one head": _places(3, grouped=True),
            "3 places, sequential heads": _places(3, form="sequential"),
            "3 places, JSON": _places(3, form="json", weights=JSON.weights),
        },
    ),
    "weights": Experiment(
        "Do head and focal weights help, where all heads of every row are asked for, most of them null?",
        {
            "the paper's": _weights(PAPER),
            "the paper's, not focal": _weights(replace(PAPER, focal=(1.0,) * 6)),
            "all 1": _weights(FLAT),
            "all 1, a row's own heads alone": replace(_weights(FLAT), all_heads=False),
        },
    ),
    "balance": Experiment(
        "Does it help to train calls of each number of arguments as often?",
        {"balanced": BASE, "as found": replace(BASE, corpus=CorpusOptions(SKEWED))},
    ),
    "constraint": Experiment(
        "What is the constraint worth, by how much was trained?",
        {
            "1/4 of the tokens": replace(BASE, tokens=TOKENS / 4),
            "1/2": replace(BASE, tokens=TOKENS / 2),
            "all": BASE,
            "all, forced tokens not taught": replace(BASE, forced=0.0),
        },
    ),
    "draft": Experiment(
        "What does a small ST model's draft save the large one?",
        {
            "target": BASE,
            "draft": replace(BASE, tokens=2 * TOKENS, shape=DRAFT),
        },
    ),
}
