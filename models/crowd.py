"""Decide for many game characters that have the same tools, several in one forward pass of the model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.models.call import Decision
from rtcontrol.models.decider import DeciderSpec, result_or_error
from rtcontrol.models.decode.core import Drafts
from rtcontrol.models.in_flight import InFlightDecode, evaluate, run_to_end

MAX_SEQUENCES = 256  # maximum number of cached prompts; an evicted prompt is computed again after the shared prefix


@dataclass(frozen=True, slots=True)
class CharacterPrompt:
    """The input of one character's decision. `key` identifies the character, and must be unique in a batch."""

    key: str
    observation: str
    instruction: str
    history: Sequence[str] = ()


@dataclass(slots=True)
class CharacterSequence:
    """The cache handle of one character's prompt, and the draft tokens for the character's next call."""

    handle: Any
    drafts: Drafts = field(default_factory=Drafts)


class CrowdDecoder:
    """Decides for many characters in shared forward passes. Sharing a pass does not change a character's decision. Only
    `cancel` is thread-safe."""

    def __init__(self, spec: DeciderSpec, max_sequences: int = MAX_SEQUENCES) -> None:
        self.decider = spec.build()
        self._max_sequences = max(max_sequences, self.decider.runner.caps.batch)
        self._sequences: OrderedDict[str, CharacterSequence] = OrderedDict()  # by character, least recently used first
        self._stop = threading.Event()

    def decide(self, prompts: Sequence[CharacterPrompt]) -> list[Decision | Exception]:
        """Return, in the order of `prompts`, each character's decision or the exception that it raised."""
        return run_to_end(self.decide_in_steps(prompts))

    def decide_in_steps(self, prompts: Sequence[CharacterPrompt]) -> Generator[None, None, list[Decision | Exception]]:
        """Do the same as `decide`, as a generator that yields between forward passes, so that the caller may stop."""
        self._stop.clear()
        batch, decisions = self.decider.runner.caps.batch, list[Decision | Exception]()
        for i in range(0, len(prompts), batch):
            batch_prompts = prompts[i : i + batch]
            decodes = [result_or_error(self._start_decision, prompt) for prompt in batch_prompts]
            yield from evaluate(self.decider.runner, [each for each in decodes if isinstance(each, InFlightDecode)])
            decisions += [
                d
                if isinstance(d, Exception)
                else result_or_error(self.decider.result_of, d, p.observation, p.instruction)
                for d, p in zip(decodes, batch_prompts, strict=True)
            ]
        return decisions

    def cancel(self) -> None:
        """Stop the current batch before its next forward pass."""
        self._stop.set()

    def _start_decision(self, prompt: CharacterPrompt) -> InFlightDecode:
        sequence = self._sequence_of(prompt.key)
        suffix = self.decider.suffix(prompt.observation, prompt.instruction, prompt.history)
        return self.decider.decoding.start_on_handle(sequence.handle, suffix, sequence.drafts, self._stop)

    def _sequence_of(self, key: str) -> CharacterSequence:
        sequence = self._sequences.pop(key, None)
        if sequence is None and len(self._sequences) >= self._max_sequences:
            # Evict the least recently used character, and reuse its handle, because all characters share the prefix.
            sequence = CharacterSequence(self._sequences.popitem(last=False)[1].handle)
        if sequence is None:
            sequence = CharacterSequence(self.decider.decoding.copy_handle())
        self._sequences[key] = sequence
        return sequence
