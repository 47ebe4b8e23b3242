"""The experiments: of each its arms, each a setting that is trained from several seeds. What two have in common is
trained once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rtcontrol.evaluation.experiments import corpus, delay, drafts, judging, latency, schemas, training
from rtcontrol.evaluation.experiments.corpus import CorpusOptions
from rtcontrol.evaluation.experiments.forms import FORMS, Form
from rtcontrol.evaluation.experiments.judging import HELD, JUDGED, allowed, free
from rtcontrol.evaluation.experiments.kept import CHECKPOINT, KeptRun, digest
from rtcontrol.evaluation.experiments.training import GROUP, PLAIN, Setting, loaded
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.prompt import COMPACT
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.adopt import export
from rtcontrol.models.train.finetune.config import FinetuneRecipe
from rtcontrol.models.train.policy import TreeDecider
from rtcontrol.models.train.rows import LossWeights, Row
from rtcontrol.models.train.scratch import ModelShape


def run(one: KeptRun, setting: Setting, folder: Path) -> dict[str, Any]:
    """Of the held-out rows with a place: whole calls that are right, decoded freely; and of heads, which the tree
    decoder decodes, how many places are one of those told, mixed, or neither."""
    options = CorpusOptions(setting.corpus.shares, setting.corpus.places, held_out=True)
    judged = itertools.islice(corpus.samples(HELD, options), JUDGED)
    samples = [sample for sample in judged if "x" in sample.call.arguments]
    made = loaded(setting, one.checkpoint())
    found: dict[str, Any] = {"of": len(samples), "right": sum(free(made.model, made.encoder, allowed(samples)))}
    if setting.form == "heads":
        decide, calls = TreeDecider(made.model, made.heads), list[Any]()
        for at in range(0, len(samples), GROUP):
            calls += decide([Row(s.instruction, s.observation, None) for s in samples[at : at + GROUP]])
        kinds = [_kind(call, sample.allowed) for call, sample in zip(calls, samples, strict=True)]
        found |= {kind: kinds.count(kind) for kind in ("told", "mixed", "neither")}
    return found


def _kind(call: Any, calls: Sequence[Call]) -> str:
    places = [(one.arguments["x"], one.arguments["y"]) for one in calls]
    own = (call.arguments.get("x"), call.arguments.get("y")) if isinstance(call, Call) else (None, None)
    if own in places:
        return "told"
    xs, ys = zip(*places, strict=True)
    return "mixed" if own[0] in xs and own[1] in ys else "neither"


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


RATES, RATES_SEED = "rates", 100  # of learning rates one seed, which nothing else has
NAMES = (*EXPERIMENTS, "delay", "schemas", "places", "latency", "drafts")
# These take models that others trained, when all are; the first one measures time.
AFTERWARDS = (latency.run, drafts.run, schemas.judge, run)
SCHEMAS = {arm: EXPERIMENTS["forms"].arms[arm] for arm in ("heads", "JSON")}


def planned(names: Sequence[str], seeds: int, out: Path) -> Iterator[KeptRun]:
    """The runs of these experiments, seed by seed, so that every arm has as many. Raises UserError."""
    if unknown := [name for name in names if name not in NAMES]:
        raise UserError(f"There is no experiment {unknown[0]!r}.", f"Choose {', '.join(NAMES)}.")
    for seed in range(seeds):
        for name in names:
            if name == RATES:
                if not seed:
                    yield from of(name, RATES_SEED, out).values()
            else:
                yield from of(name, seed, out).values()


def of(name: str, seed: int, out: Path) -> dict[str, KeptRun]:
    """The runs of an experiment from one seed, by arm."""
    if name == "delay":
        return {arm: _delay(arm, lateness, seed, out) for arm, lateness in delay.ARMS.items()}
    if name == "schemas":
        return _schemas(seed, out)
    if name == "places":
        arms = EXPERIMENTS["independence"].arms
        models = of("independence", seed, out)
        return {arm: _after(name, run, (models[arm], setting), seed, out) for arm, setting in arms.items()}
    if name == "latency":
        forms = of("forms", seed, out)
        return {"latency": _after(name, latency.run, (forms["heads"], forms["JSON"]), seed, out)}
    if name == "drafts":
        pair = of("draft", seed, out)
        return {"drafts": _after(name, drafts.run, (pair["target"], pair["draft"]), seed, out)}
    return {arm: trained(f"{name}: {arm}", setting, seed, out) for arm, setting in EXPERIMENTS[name].arms.items()}


def trained(says: str, setting: Setting, seed: int, out: Path) -> KeptRun:
    """One model of the corpus."""
    said = (asdict(setting), training.vocabulary(setting.form).to_str())
    folder = out / f"{setting.form}-{digest(said)}-{seed}"
    return KeptRun(f"{says}, seed {seed}", folder, train_and_judge, (setting, seed))


def _delay(arm: str, lateness: delay.Lateness, seed: int, out: Path) -> KeptRun:
    said = (asdict(lateness), asdict(delay.SHAPE), delay.vocabulary().to_str(), delay.HISTORY)
    folder = out / f"delay-{digest(said)}-{seed}"
    return KeptRun(f"delay: trained {arm}, seed {seed}", folder, delay.run, (lateness, seed))


def _schemas(seed: int, out: Path) -> dict[str, KeptRun]:
    forms, made = of("forms", seed, out), dict[str, KeptRun]()
    for arm, setting in SCHEMAS.items():
        one = forms[arm]
        made[f"one schema, {arm}"] = _after("schemas", schemas.judge, (one, setting), seed, out)
        said = (asdict(setting), training.vocabulary(setting.form).to_str())
        folder = out / f"schemas-{setting.form}-{digest(said)}-{seed}"
        made[f"drawn, {arm}"] = KeptRun(f"schemas: drawn, {arm}, seed {seed}", folder, schemas.run, (setting, seed))
    return made


def _after(name: str, work: Any, given: tuple[Any, ...], seed: int, out: Path) -> KeptRun:
    models = [one.folder.name for one in given if isinstance(one, KeptRun)]
    return KeptRun(f"{name}, seed {seed}", out / f"{name}-{digest(models)}", work, given)


def train_and_judge(setting: Setting, seed: int, folder: Path) -> dict[str, Any]:
    """A model of the corpus, its checkpoint kept; of held-out rows those that it does right."""
    made, told = training.train(setting, seed, training.vocabulary(setting.form), folder)
    found: dict[str, Any] = {"setting": asdict(setting), "seed": seed, "parameters": made.model.num_parameters()}
    found |= {"trained": told, "right": {}}
    for name, options in _judged(setting).items():
        samples = list(itertools.islice(corpus.samples(judging.HELD, options), judging.JUDGED))
        right = {"free": judging.free(made.model, made.encoder, judging.allowed(samples))}
        if setting.form == "heads":
            right["constrained"] = judging.constrained(made, samples)
        found["right"][name] = {way: judging.counted(samples, oks) for way, oks in right.items()}
    export(made.model, made.tokenizer, COMPACT, folder / CHECKPOINT, torch.float32)
    TrainingMetadata((tuple(corpus.tools(setting.grouped)),)).write(folder / CHECKPOINT)
    return found


def _judged(setting: Setting) -> dict[str, CorpusOptions]:
    """Rows like those of training but with seeds and orders of their own; of other shares too where that is asked."""
    if setting in EXPERIMENTS["balance"].arms.values():
        return {"balanced": CorpusOptions(held_out=True), "as found": CorpusOptions(SKEWED, held_out=True)}
    return {"own": CorpusOptions(setting.corpus.shares, setting.corpus.places, held_out=True)}
