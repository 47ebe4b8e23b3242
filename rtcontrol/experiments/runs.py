"""All runs of the experiments, each with what it trains and by what it is judged."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rtcontrol.experiments import corpus, delay, drafts, judging, latency, places, schemas, training
from rtcontrol.experiments.corpus import CorpusOptions
from rtcontrol.experiments.kept import CHECKPOINT, KeptRun, digest
from rtcontrol.experiments.plan import EXPERIMENTS, SKEWED
from rtcontrol.experiments.training import Setting
from rtcontrol.models.checkpoint.prompt import COMPACT
from rtcontrol.models.checkpoint.training_metadata import Learnt
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.adopt import export

RATES, RATES_SEED = "rates", 100  # of learning rates one seed, which nothing else has
NAMES = (*EXPERIMENTS, "delay", "schemas", "places", "latency", "drafts")
# These take models that others trained, when all are; the first one measures time.
AFTERWARDS = (latency.run, drafts.run, schemas.judge, places.run)
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
        return {arm: _after(name, places.run, (models[arm], setting), seed, out) for arm, setting in arms.items()}
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
    Learnt((tuple(corpus.tools(setting.grouped)),)).write(folder / CHECKPOINT)
    return found


def _judged(setting: Setting) -> dict[str, CorpusOptions]:
    """Rows like those of training but with seeds and orders of their own; of other shares too where that is asked."""
    if setting in EXPERIMENTS["balance"].arms.values():
        return {"balanced": CorpusOptions(held_out=True), "as found": CorpusOptions(SKEWED, held_out=True)}
    return {"own": CorpusOptions(setting.corpus.shares, setting.corpus.places, held_out=True)}
