"""Decide for many characters of one agent: one plan and one prefix, and a sequence for each recent character."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.models.call import Decision
from rtcontrol.models.decider import DeciderSpec, tried
from rtcontrol.models.decode.core import Drafts
from rtcontrol.models.in_flight import InFlightDecode, evaluate, result

SEQUENCES = 256  # are kept; a character that comes back later starts after the prefix again


@dataclass(frozen=True, slots=True)
class CharacterPrompt:
    """The input of one character. `key` identifies it; a batch has each key once."""

    key: str
    observation: str
    instruction: str
    history: Sequence[str] = ()


@dataclass(slots=True)
class CharacterSequence:
    """A character's computed prompt, and the guesses for its next call."""

    handle: Any
    drafts: Drafts = field(default_factory=Drafts)


class CrowdDecoder:
    """Decides for many characters in the same forward passes; each gets the call that it gets alone, or its own
    exception. Only `cancel` is thread-safe."""

    def __init__(self, spec: DeciderSpec, most: int = SEQUENCES) -> None:
        self.lone = spec.build()
        self._most = max(most, self.lone.runner.caps.batch)
        self._kept: OrderedDict[str, CharacterSequence] = OrderedDict()  # the last decided last
        self._stop = threading.Event()

    def decide(self, prompts: Sequence[CharacterPrompt]) -> list[Decision | Exception]:
        """Return each character's decision, or its error."""
        return result(self.decide_in_steps(prompts))

    def decide_in_steps(self, prompts: Sequence[CharacterPrompt]) -> Generator[None, None, list[Decision | Exception]]:
        """Decide as `decide`; the caller may stop at any yield, between forward passes."""
        self._stop.clear()
        batch, decisions = self.lone.runner.caps.batch, list[Decision | Exception]()
        for i in range(0, len(prompts), batch):
            now = prompts[i : i + batch]
            decodes = [tried(self._start, prompt) for prompt in now]
            yield from evaluate(self.lone.runner, [each for each in decodes if isinstance(each, InFlightDecode)])
            decisions += [
                decode if isinstance(decode, Exception) else tried(self.lone.result_of, decode, prompt.instruction)
                for decode, prompt in zip(decodes, now, strict=True)
            ]
        return decisions

    def cancel(self) -> None:
        """Stop the current batch before its next pass."""
        self._stop.set()

    def _start(self, prompt: CharacterPrompt) -> InFlightDecode:
        kept = self._sequence(prompt.key)
        suffix = self.lone.suffix(prompt.observation, prompt.instruction, prompt.history)
        return self.lone.decoding.begin_on(kept.handle, suffix, kept.drafts, self._stop)

    def _sequence(self, key: str) -> CharacterSequence:
        kept = self._kept.pop(key, None)
        if kept is None and len(self._kept) >= self._most:
            # Of the character that decided the longest ago: what it holds of the prefix is as good for any other.
            kept = CharacterSequence(self._kept.popitem(last=False)[1].handle)
        if kept is None:
            kept = CharacterSequence(self.lone.decoding.another())
        self._kept[key] = kept
        return kept
