"""Find gaps, which are numbers that training observations never have, and create situations with such numbers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rtcontrol.models.checkpoint.observations import KnownNumbers, KnownObservations, read_tokens, swap_number
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.observations import ObservationCounts
from rtcontrol.training.examples import Label, Sample
from rtcontrol.training.fit_run import Share

SAMPLED = 2_000  # gaps between numbers are searched in this number of situations
FILLED = 0.25  # share of situations in which a number is replaced by a number from a gap
TRIED = 32  # number of situations that are tried per field; the function must label one of them
MAX_NUMBERS = 200  # maximum number of random numbers from the gaps of one field
NAMED = 4  # a notice names at most this number of fields


def gap_notices(observations: Iterable[str], filled: Iterable[str] = ()) -> list[str]:
    """Return notices for the user about fields with gaps, and about fields whose gaps are `filled` in training."""
    notices = [f"{name}: the numbers between those of `situations` are trained, too." for name in filled]
    sparse = _sparse_numbers(observations)
    listed = "; ".join(f"{_name(name)} {known.message()}" for name, known in [*sparse.items()][:NAMED])
    if sparse:
        notices.append(f"Some numbers between others are never observed, and are held: the model knows {listed}.")
    return notices


@dataclass(frozen=True)
class GapFiller:
    """A generator of situations of `sample`, some with a number that `sample` never yields (`numbers`, by field)."""

    sample: Sample
    label: Label
    numbers: Mapping[str, list[str]]

    @classmethod
    def from_sample(cls, sample: Sample, label: Label, rng: random.Random) -> GapFiller:
        """Return a filler for the gaps in `sample`, except for fields with numbers that the function cannot label."""
        situations = [*itertools.islice(sample(rng), SAMPLED)]
        sparse = _sparse_numbers(observation for _, observation in situations)
        tried = cls(sample, label, {name: known.gaps(MAX_NUMBERS) for name, known in sparse.items()})
        some = situations[:TRIED]
        works = {name: any(tried._fill(each, name, rng) for each in some) for name in sparse}
        return cls(sample, label, {name: each for name, each in tried.numbers.items() if works[name]})

    def __call__(self, rng: random.Random) -> Iterator[tuple[str, str]]:
        """Yield situations endlessly."""
        names = [*self.numbers]
        for situation in self.sample(rng):
            filled = self._fill(situation, rng.choice(names), rng) if names and rng.random() < FILLED else None
            yield filled or situation

    def _fill(self, situation: tuple[str, str], name: str, rng: random.Random) -> tuple[str, str] | None:
        """Return a situation with a number from a field's gaps, or None without this field or without a label."""
        instruction, observation = situation
        if (text := swap_number(observation, name, rng.choice(self.numbers[name]))) is None:
            return None
        try:
            self.label(instruction, text)
        except UserError:
            return None
        return instruction, text

    def names(self) -> list[str]:
        """Return the names of the filled fields for people."""
        return [_name(name) for name in self.numbers]


def unfamiliar_shares(known: KnownObservations, observations: Sequence[str], rng: random.Random) -> dict[str, Share]:
    """Return the share of `observations` that count as unfamiliar, unchanged and after each kind of change."""
    shares = {"unchanged": [bool(known.unfamiliar(text)) for text in observations]}
    for text in observations:
        tokens = [*read_tokens(text)]
        spans = [match.span() for _, match in tokens]
        words = [match.span() for _, match in tokens if match.lastindex == 2]
        for name, number in _other_numbers(known, [token for token, match in tokens if match.lastindex == 1], rng):
            changed = swap_number(text, *number)
            shares.setdefault(name, []).append(bool(changed and known.unfamiliar(changed)))
        for name, places, other in (("a new word", words, "zqorgle"), ("without a word or number", spans, "")):
            if places:
                start, end = rng.choice(places)
                shares.setdefault(name, []).append(bool(known.unfamiliar(text[:start] + other + text[end:])))
    shares["an empty text"] = [bool(known.unfamiliar(""))]
    return {name: Share(sum(each), len(each)) for name, each in shares.items()}


def _other_numbers(
    known: KnownObservations, names: Sequence[str], rng: random.Random
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield (kind of change, (field, number)) with random fields of `names` and numbers that training never had."""
    gaps = {
        name: numbers for name in names if name in known.numbers and (numbers := known.numbers[name].gaps(MAX_NUMBERS))
    }
    if gaps:
        name = rng.choice([*gaps])
        yield "a number between", (name, rng.choice(gaps[name]))
    if listed := [name for name in names if name in known.numbers]:
        name = rng.choice(listed)
        yield "a number beyond", (name, known.numbers[name].beyond(rng.choice((1, 2, 10, 100)), rng.random() < 0.5))


def known_table(known: KnownObservations) -> list[tuple[str, str]]:
    """Return (field, description of its numbers in training) for the model card."""
    return [(_name(name), numbers.message()) for name, numbers in known.numbers.items()]


def _sparse_numbers(observations: Iterable[str]) -> dict[str, KnownNumbers]:
    counts = ObservationCounts()
    for observation in observations:
        counts.add(observation)
    return counts.sparse_numbers()


def _name(field: str) -> str:
    word, _, place = field.partition("#")
    return word if word and place == "1" else f"number {place}{' after ' * bool(word)}{word}"
