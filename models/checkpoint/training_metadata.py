"""Training metadata of a checkpoint, in `rtcontrol.json` next to the weights: tools, history, observation, rate."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

from rtcontrol.models.errors import UserError, read_json
from rtcontrol.models.files import no_link, replace_file
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas

_SIGN = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # scripts without spaces: each character is a word
_WORD = re.compile(rf"[{_SIGN}]|(?:(?![{_SIGN}])[^\W\d_])+(?:['\u2019][^\W\d_]+)*")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
ENDINGS = ("s", "es", "ed", "d", "ing", "ly", "'s")
SLIPS, STEM = 4, 3  # letters of a word that is long enough for a typing error or another ending
# The most that is examined: a longer sentence is not understood anyway, and a hostile one must not cost more.
MOST_UNKNOWN, MOST_FORMS, LONGEST = 8, 64, 32
# Words that reverse the meaning of a sentence: none of them counts as a form or a misspelling of another word.
_TURNING = """
not no non nor never none nothing neither without except unless until instead avoid both all every each any only dont
wont cant don't won't can't doesn't isn't shouldn't mustn't
"""
TURNING = frozenset(_TURNING.split())


def words(text: str) -> list[str]:
    """Return the words of a sentence in lower case, without numbers."""
    return [word.replace("\u2019", "'") for word in _WORD.findall(text.lower())]


class KnownWords:
    """A set of known words, also with another ending, or with one typing error after the first letter."""

    def __init__(self, known: Collection[str]) -> None:
        self._known = frozenset(known)

    def unknown(self, text: str) -> tuple[str, ...]:
        """Return the words of a sentence that are not known, each once in order, at most MOST_UNKNOWN."""
        unknown_words: list[str] = []
        others = [word for word in dict.fromkeys(words(text)) if word not in self._known]
        for n, word in enumerate(others):
            if n >= MOST_FORMS or not self._is_form(word):
                unknown_words.append(word)
                if len(unknown_words) == MOST_UNKNOWN:
                    break
        return tuple(unknown_words)

    def _is_form(self, word: str) -> bool:
        if word in TURNING or len(word) > LONGEST:
            return False
        return any(form in self._known and form not in TURNING for form in _forms(word))


def _forms(word: str) -> Iterator[str]:
    """Yield forms of a word: with or without an ending (`driving` is `drive`, `stopped` is `stop`), and with one typing
    error (a letter missing, doubled, swapped or replaced)."""
    for ending in ENDINGS:
        yield word + ending
        if word.endswith(ending) and len(stem := word[: -len(ending)]) >= STEM:
            yield from (stem, stem + "e", stem[:-1] if stem[-1] == stem[-2] else stem)
    if word.endswith("e"):
        yield word[:-1] + "ing"
    for i in range(1, len(word) - 1):
        yield word[:i] + word[i + 1] + word[i] + word[i + 2 :]
    if len(word) >= SLIPS:
        for i in range(1, len(word) + 1):
            yield word[:i] + word[i + 1 :]
            for letter in _LETTERS:
                yield word[:i] + letter + word[i:]
                yield word[:i] + letter + word[i + 1 :]


SHOWN = 60  # characters of a value
Definition = Mapping[str, Any]


def comparable(tool: Definition) -> str:
    """Return a line of JSON that is equal for definitions that differ only in the order of keys or of `required`."""
    return json.dumps(_plain(tool), ensure_ascii=False, sort_keys=True)


def first_difference(tools: Sequence[ToolSchema], sets: Sequence[Sequence[Definition]]) -> str | None:
    """Describe the first difference between tools and the most similar of some sets; None if there is no set."""
    current = {tool.name: _plain(tool.to_openai()["function"]) for tool in tools}
    known = [{tool["function"]["name"]: _plain(tool["function"]) for tool in tools_of} for tools_of in sets]
    if not known:
        return None
    nearest = max(known, key=lambda tools_of: len(tools_of.keys() & current.keys()))
    if missing := [name for name in nearest if name not in current]:
        return f"the tool {missing[0]} is missing here"
    if more := [name for name in current if name not in nearest]:
        return f"the tool {more[0][:SHOWN]} is not among its tools"
    if [*current] != [*nearest]:
        return f"its tools are in the order {', '.join(nearest)}"
    return next((f"the tool {n} is defined otherwise" for n in current if current[n] != nearest[n]), None)


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
DOUBT = 0.5  # the factor of an unknown word if no gate is set
BELOW = 0.99  # share of the gate, so that otherwise confident decisions end below the gate
REMEDY = "Restore the file that came with the weights, or take it away: then what was learnt is not known."


@dataclass(frozen=True)
class TrainingMetadata:
    """The training metadata of a checkpoint. `tool_sets`: sets of tools, as OpenAI-style definitions; `history`: number
    of calls in prompts (0: none); `allow_null`: the model may leave the active call unchanged; `instruction`: the
    default instruction; `observation`: the words of observations with their units, or None; `rate_hz`: decisions per
    second; `gate`: the confidence of the function head below which an instruction counts as not understood and calls
    are held back (with `allow_null` the null function means the same); None: not known. `any_tools`: the model was
    trained to read tools, and may try unknown ones.

    `words` are the words of training sentences, and words that change no meaning, separated by spaces. Every other word
    of an instruction lowers the confidence, so that the gate holds back an instruction with more than `unknown_words`
    unknown words, even if the model is confident.
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

    def unknown(self, instruction: str) -> tuple[str, ...]:
        """Return the words of an instruction that no training sentence had, or none if the training words are not
        known."""
        return () if self._heard is None else self._heard.unknown(instruction)

    @property
    def doubt(self) -> float:
        """Return the factor of the function head's confidence for each unknown word."""
        if not self.gate:
            return DOUBT
        return float((BELOW * self.gate) ** (1 / (self.unknown_words + 1)))

    @cached_property
    def _heard(self) -> KnownWords | None:
        return None if self.words is None else KnownWords(self.words.split())

    def knows(self, tools: Sequence[ToolSchema]) -> bool:
        """Return whether the model was trained on exactly these tools in this order. The order of keys does not
        matter."""
        return self._same(tools) is not None

    def as_trained(self, tools: tuple[ToolSchema, ...]) -> tuple[ToolSchema, ...]:
        """Return known tools in the key order of training, so that the prompt has the same bytes."""
        return self._same(tools) or tools

    def difference(self, tools: Sequence[ToolSchema]) -> str | None:
        """Return the first difference of unknown tools from the known ones; None if no tools are known."""
        return first_difference(tools, [[tool.to_openai() for tool in known] for known, _ in self._known])

    def _same(self, tools: Sequence[ToolSchema]) -> tuple[ToolSchema, ...] | None:
        wanted = [comparable(tool.exact()) for tool in tools]
        return next((known for known, lines in self._known if lines == wanted), None)

    @cached_property
    def _known(self) -> list[tuple[tuple[ToolSchema, ...], list[str]]]:
        sets = [tuple(tool_schemas(definitions)) for definitions in self.tool_sets]
        return [(schemas, [comparable(tool.exact()) for tool in schemas]) for schemas in sets]

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...] | None:
        """Return the tools of the model if it was trained on one set."""
        return self.tool_sets[0] if len(self.tool_sets) == 1 else None

    def write(self, folder: Path) -> None:
        """Write the metadata next to the weights; an old file stays until the new one is complete."""
        body = {"format": FORMAT, **{name: getattr(self, name) for name in self.__dataclass_fields__}}
        replace_file(no_link(folder / FILE_NAME), json.dumps(body, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """Return the metadata in a checkpoint's folder, or None if there is no such file. Raises UserError for a
        damaged file."""
        path = folder / FILE_NAME
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            return None
        return cls._read(path.resolve(), changed)

    @classmethod
    @lru_cache(maxsize=64)  # every session reads this file
    def _read(cls, path: Path, changed_ns: int) -> Self:
        fields = read_json(path, UserError(f"{path} is gone.", REMEDY), REMEDY)
        if fields.pop("format", None) != FORMAT:
            raise UserError(f"{path} is of another format than {FORMAT}.", "Use the rtcontrol that wrote it.")
        try:
            sets = tuple(tuple(definitions) for definitions in fields.pop("tool_sets"))
            learnt = cls(sets, **fields)
            assert learnt._known is not None  # raises if the tools are not valid definitions
            if isinstance(learnt.history, bool) or not isinstance(learnt.history, int) or learnt.history < 0:
                raise ValueError(f"history is {learnt.history!r}")
            if (
                not isinstance(learnt.words, str | None)
                or type(learnt.unknown_words) is not int
                or learnt.unknown_words < 0
            ):
                raise ValueError(f"unknown_words is {learnt.unknown_words!r}, words {str(learnt.words)[:40]!r}")
        except (KeyError, TypeError, ValueError, UserError) as error:
            raise UserError(f"{path} does not say what was learnt ({error}).", REMEDY) from None
        return learnt
