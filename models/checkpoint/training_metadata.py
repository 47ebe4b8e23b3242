"""Read and write `rtcontrol.json` next to a checkpoint's weights: the tools, history, words and rate of its
training."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

from rtcontrol.models.checkpoint.observations import KnownObservations
from rtcontrol.models.errors import UserError, read_json
from rtcontrol.models.files import replace_file
from rtcontrol.models.numbers import TrainedNumbers
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas

_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # scripts without spaces, in which each character counts as a word
_WORD = re.compile(rf"[{_CJK}]|(?:(?![{_CJK}])[^\W\d_])+(?:['\u2019][^\W\d_]+)*")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
ENDINGS = ("s", "es", "ed", "d", "ing", "ly", "'s")
MIN_TYPO_LENGTH, MIN_STEM_LENGTH = 4, 3  # letters; shorter words must match exactly
# Limits on unknown words, checked words and word length. They bound the time for one (possibly hostile) sentence.
MAX_UNKNOWN, MAX_CHECKED, MAX_WORD_LENGTH = 8, 64, 32
# Words that change the meaning of a sentence. They never count as forms or misspellings of other words.
_NEGATIONS = """
not no non nor never none nothing neither without except unless until instead avoid both all every each any only dont
wont cant don't won't can't doesn't isn't shouldn't mustn't
"""
NEGATIONS = frozenset(_NEGATIONS.split())


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without numbers."""
    return [word.replace("\u2019", "'") for word in _WORD.findall(text.lower())]


class KnownWords:
    """A set of known words. Other forms of a known word, and words with one typing error, also count as known."""

    def __init__(self, known: Collection[str]) -> None:
        self._known = frozenset(known)

    def unknown(self, text: str) -> tuple[str, ...]:
        """Return the first MAX_UNKNOWN different words of a text that are not known."""
        unknown_words: list[str] = []
        others = [word for word in dict.fromkeys(words(text)) if word not in self._known]
        for n, word in enumerate(others):
            if n >= MAX_CHECKED or not self._is_form(word):
                unknown_words.append(word)
                if len(unknown_words) == MAX_UNKNOWN:
                    break
        return tuple(unknown_words)

    def _is_form(self, word: str) -> bool:
        if word in NEGATIONS or len(word) > MAX_WORD_LENGTH:
            return False
        return any(form in self._known and form not in NEGATIONS for form in _forms(word))


def _forms(word: str) -> Iterator[str]:
    """Yield other forms of a word: with or without an ending (`drive` for `driving`), and with one typing error
    corrected (a letter missing, added, swapped or replaced)."""
    for ending in ENDINGS:
        yield word + ending
        if word.endswith(ending) and len(stem := word[: -len(ending)]) >= MIN_STEM_LENGTH:
            yield from (stem, stem + "e", stem[:-1] if stem[-1] == stem[-2] else stem)
    if word.endswith("e"):
        yield word[:-1] + "ing"
    for i in range(1, len(word) - 1):
        yield word[:i] + word[i + 1] + word[i] + word[i + 2 :]
    if len(word) >= MIN_TYPO_LENGTH:
        for i in range(1, len(word) + 1):
            yield word[:i] + word[i + 1 :]
            for letter in _LETTERS:
                yield word[:i] + letter + word[i:]
                yield word[:i] + letter + word[i + 1 :]


MAX_NAME_LENGTH = 60  # characters; longer names of tools are cut in messages
Definition = Mapping[str, Any]


def comparable_json(tool: Definition) -> str:
    """Return a tool definition as JSON that does not depend on the order of keys or of `required`."""
    return json.dumps(_plain(tool), ensure_ascii=False, sort_keys=True)


def first_difference(tools: Sequence[ToolSchema], sets: Sequence[Sequence[Definition]]) -> str | None:
    """Describe the first difference between `tools` and the most similar tool set in `sets`; None without sets."""
    current = {tool.name: _plain(tool.to_openai()["function"]) for tool in tools}
    known = [{tool["function"]["name"]: _plain(tool["function"]) for tool in tools_of} for tools_of in sets]
    if not known:
        return None
    nearest = max(known, key=lambda tools_of: len(tools_of.keys() & current.keys()))
    if missing := [name for name in nearest if name not in current]:
        return f"the tool {missing[0]} is missing"
    if more := [name for name in current if name not in nearest]:
        return f"the tool {more[0][:MAX_NAME_LENGTH]} is not among its tools"
    if [*current] != [*nearest]:
        return f"its tools are in another order: {', '.join(nearest)}"
    return next(
        (f"the tool {n} has {_place(current[n], nearest[n])}" for n in current if current[n] != nearest[n]), None
    )


ABSENT, SHOWN = "(absent)", 60


def _place(current: Any, trained: Any, path: str = "") -> str:
    """Return the first keyword in which two definitions differ, with its value in both, as the end of a sentence."""
    if isinstance(current, Mapping) and isinstance(trained, Mapping):
        names = dict.fromkeys([*current, *trained])
        name = next(n for n in names if current.get(n, ABSENT) != trained.get(n, ABSENT))
        return _place(current.get(name, ABSENT), trained.get(name, ABSENT), f"{path}.{name}".removeprefix("."))
    now, before = (
        v if v is ABSENT else json.dumps(v, ensure_ascii=False, default=repr)[:SHOWN] for v in (current, trained)
    )
    return f"`{path}` {now}, in training {before}"


def _plain(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(part, name) for name, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        listed = [_plain(part) for part in value]
        names = key == "required" and all(isinstance(part, str) for part in listed)
        return sorted(listed) if names else listed
    return value


FILE_NAME = "rtcontrol.json"
FORMAT = 1
EMPTY = "(an empty instruction)"  # reported as the unknown word of an instruction that has no words
DEFAULT_WORD_FACTOR = 0.5  # without a gate, each unknown word multiplies the confidence by this
GATE_MARGIN = 0.99  # with too many unknown words, the confidence is at most 0.99 times the gate
RESTORE_HINT = "Restore the file that came with the weights, or remove it to run without training metadata."


@dataclass(frozen=True)
class TrainingMetadata:
    """The training metadata of a checkpoint. `tool_sets` are the sets of tools in training, as OpenAI-style
    definitions; with `any_tools` the model can also read other tools. `history` is the number of calls in prompts.
    With `allow_null` the model may choose no call. `instruction` is the default instruction. `observation` maps words
    of observations to their units. `rate_hz` are decisions per second. If the function head's confidence is below the
    `gate`, the instruction counts as not understood, and the call is not executed.

    `words` are the known words, separated by spaces. Each unknown word of an instruction lowers the confidence; more
    than `unknown_words` of them lower it below the gate. `numbers` are the numbers and units of training instructions
    (see `TrainedNumbers`); any other number or unit lowers the confidence below the gate. `observed` describes the
    training observations (see `KnownObservations`); an unfamiliar observation lowers the confidence, too. If the model
    chooses no call, the active call continues if `null_keeps` is set; if not, the instruction counts as not understood.
    None means that a value is unknown.
    """

    tool_sets: tuple[tuple[Mapping[str, Any], ...], ...]
    history: int = 0
    allow_null: bool = False
    instruction: str | None = None
    observation: Mapping[str, str | None] = field(default_factory=dict)
    rate_hz: float | None = None
    gate: float | None = None
    any_tools: bool = False
    words: str | None = None
    unknown_words: int = 0
    numbers: Mapping[str, Sequence[str]] | None = None
    observed: Mapping[str, Any] | None = None
    null_keeps: bool = False

    def unfamiliar(self, observation: str) -> tuple[str, ...]:
        """Return descriptions of what no training observation had; empty if training observations are not stored."""
        return () if self._known_observations is None else self._known_observations.unfamiliar(observation)

    @property
    def null_is_doubt(self) -> bool:
        """Return whether a decision for no call means that the instruction is not understood."""
        return self.allow_null and self.gate is not None and not self.null_keeps

    @property
    def unfamiliar_factor(self) -> float:
        """Return the factor by which an unfamiliar observation lowers the function head's confidence."""
        return GATE_MARGIN * self.gate if self.gate else DEFAULT_WORD_FACTOR

    @cached_property
    def _known_observations(self) -> KnownObservations | None:
        return None if self.observed is None else KnownObservations.from_dict(self.observed)

    def unknown(self, instruction: str) -> tuple[tuple[str, ...], float]:
        """Return the words and numbers of an instruction that training instructions lack (if these are stored), and the
        factor by which they lower the function head's confidence."""
        strange = () if self._known_words is None else self._known_words.unknown(instruction)
        numbers = () if self._known_numbers is None else self._known_numbers.unknown(instruction, strange)
        names = [word for word in strange if not any(word in number.lower().split() for number in numbers)]
        empty = (EMPTY,) if self.words and not words(instruction) else ()
        weight = len(strange) + (self.unknown_words + 1) * (len(numbers) + len(empty))
        return (*empty, *numbers, *names), self.unknown_word_factor**weight

    @property
    def unknown_word_factor(self) -> float:
        """Return the factor by which each unknown word lowers the function head's confidence."""
        if not self.gate:
            return DEFAULT_WORD_FACTOR
        return float((GATE_MARGIN * self.gate) ** (1 / (self.unknown_words + 1)))

    @cached_property
    def _known_numbers(self) -> TrainedNumbers | None:
        return None if self.numbers is None else TrainedNumbers(self.numbers)

    @cached_property
    def _known_words(self) -> KnownWords | None:
        return None if self.words is None else KnownWords(self.words.split())

    def knows(self, tools: Sequence[ToolSchema]) -> bool:
        """Return whether the model was trained on exactly these tools, in this order."""
        return self._matching_set(tools) is not None

    def in_trained_order(self, tools: tuple[ToolSchema, ...]) -> tuple[ToolSchema, ...]:
        """Return these tools with their keys in the order of training, so that the prompt has the same text."""
        return self._matching_set(tools) or tools

    def difference(self, tools: Sequence[ToolSchema]) -> str | None:
        """Describe the first difference between `tools` and the tools in training; None if no tools are stored."""
        return first_difference(tools, [[tool.to_openai() for tool in known] for known, _ in self._known_sets])

    def _matching_set(self, tools: Sequence[ToolSchema]) -> tuple[ToolSchema, ...] | None:
        wanted = [comparable_json(tool.exact()) for tool in tools]
        return next((schemas for schemas, lines in self._known_sets if lines == wanted), None)

    @cached_property
    def _known_sets(self) -> list[tuple[tuple[ToolSchema, ...], list[str]]]:
        sets = [tuple(tool_schemas(definitions)) for definitions in self.tool_sets]
        return [(schemas, [comparable_json(tool.exact()) for tool in schemas]) for schemas in sets]

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...] | None:
        """Return the tools in training if there was only one tool set, else None."""
        return self.tool_sets[0] if len(self.tool_sets) == 1 else None

    def write(self, folder: Path) -> None:
        """Write the metadata next to the weights, atomically."""
        body = {"format": FORMAT, **{name: getattr(self, name) for name in self.__dataclass_fields__}}
        replace_file(folder / FILE_NAME, json.dumps(body, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Read the metadata in a checkpoint's folder; None without a file. Raises UserError for an invalid file."""
        path = folder / FILE_NAME
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            return None
        return cls._read(path.resolve(), changed)

    @classmethod
    @lru_cache(maxsize=64)  # every session reads this file, so it is cached
    def _read(cls, path: Path, changed_ns: int) -> Self:
        fields = read_json(path, UserError(f"{path} was removed.", RESTORE_HINT), RESTORE_HINT)
        if fields.pop("format", None) != FORMAT:
            problem = f"{path} does not have format {FORMAT}."
            raise UserError(problem, "Use the version of rtcontrol that wrote the file.")
        try:
            sets = tuple(tuple(definitions) for definitions in fields.pop("tool_sets"))
            metadata = cls(sets, **fields)
            _ = metadata._known_sets  # raises if the tools are not valid definitions
            metadata.unfamiliar("")  # raises if the observations are not valid
            if isinstance(metadata.history, bool) or not isinstance(metadata.history, int) or metadata.history < 0:
                raise ValueError(f"history is {metadata.history!r}")
            if (
                not isinstance(metadata.words, str | None)
                or type(metadata.unknown_words) is not int
                or metadata.unknown_words < 0
            ):
                raise ValueError(f"unknown_words is {metadata.unknown_words!r}, words {str(metadata.words)[:40]!r}")
            metadata.unknown("1")  # raises if the numbers are not as `known_numbers` writes them
        except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError, UserError) as error:
            raise UserError(f"{path} is not valid training metadata ({error}).", RESTORE_HINT) from None
        return metadata
