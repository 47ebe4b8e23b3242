"""Fill the prompt templates of ST checkpoints with tools, instruction, history and observation.

The template is in the file `st_template.json` next to the weights: a string with special tokens and variables. The
variables are `{tools}` (one JSON object per line), `{instruction}`, `{history}`, `{observation}`, and `{environment}`
(the observation as a JSON list of strings, as published SimpleTool checkpoints have it).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError, read_json
from rtcontrol.models.schema.tool_schema import Overflow, ToolSchema

FILE_NAME = "st_template.json"
HISTORY_LIMIT = 6
RESTORE = "Restore the file that came with the weights."
VARIABLES = ("tools", "instruction", "history", "observation", "environment")
EMPTY = dict.fromkeys(VARIABLES, "")
COMPACT = {
    "profile": "compact",
    "template": "<|im_start|>{tools}<|im_end|>{instruction}<|im_end|>{history}<|im_end|>{observation}<|im_start|>",
    "history_separator": "; ",
    "overflow": "merge",
}
SIMPLETOOL_V1_TURNS = (
    "<|im_start|>user\nenvironment: {environment}\nhistory: [{history}]\n\n{instruction}<|im_end|>\n"
    "<|im_start|>assistant\n"
)
# In version 2 of the template, the observation comes directly before the instruction.
SIMPLETOOL_V2_TURNS = SIMPLETOOL_V1_TURNS.replace("environment: {environment}\n", "").replace(
    "{instruction}", "{observation}\n\n{instruction}"
)


@dataclass(frozen=True)
class PromptPart:
    """A part of a template: the id of a special token, or the text between two special tokens as `pieces`."""

    special: int | None
    pieces: tuple[tuple[bool, str], ...] = ()  # each is (True, name of a variable) or (False, literal text)

    def uses_only(self, variables: Sequence[str]) -> bool:
        """Return whether all variables in this part are among `variables`."""
        return all(not is_variable or name in variables for is_variable, name in self.pieces)


class PromptTemplate:
    """A prompt template, parsed for one tokenizer. `where` names its file in errors."""

    def __init__(self, config: Mapping[str, Any], tokenizer: STTokenizer, where: str) -> None:
        self.profile = str(config.get("profile", "custom"))
        self.overflow: Overflow = config.get("overflow", "merge")
        self._separator = str(config.get("history_separator", ", "))
        self._tokenizer = tokenizer
        template: Any = config.get("template")
        if self.overflow not in ("merge", "cut"):
            raise UserError(f"{where}: unknown overflow {self.overflow!r}.", "Write 'merge' or 'cut'.")
        named = {v for v in VARIABLES if f"{{{v}}}" in str(template)}
        complete = {"tools", "instruction"} <= named and named & {"observation", "environment"}
        if not isinstance(template, str) or not complete:
            raise UserError(
                f"{where}: no usable 'template'.", "It must be a string with {tools}, {instruction} and {observation}."
            )
        self.parts = _parse(template, tokenizer)
        self._prefix_parts = self._count_prefix_parts()
        self._cached_ids: dict[PromptPart, tuple[str, list[int]]] = {}

    @classmethod
    def load(cls, folder: Path, tokenizer: STTokenizer) -> PromptTemplate:
        """Read the template next to the weights. Raises UserError if the file is missing or invalid."""
        path = folder / FILE_NAME
        missing = UserError(
            f"{folder} has no {FILE_NAME}, which defines the prompt's layout.",
            "For a published SimpleTool checkpoint run `rtcontrol models adopt CHECKPOINT --template-from FILE`.",
        )
        return cls(read_json(path, missing, RESTORE), tokenizer, str(path))

    def prefix_ids(self, tools: Sequence[ToolSchema]) -> list[int]:
        """Return the token ids of the cacheable part: up to the last special token before the other variables."""
        return self._encode(self.parts[: self._prefix_parts], {"tools": tools_text(tools)})

    def suffix_ids(self, instruction: str, observation: str, history: Sequence[str] = ()) -> list[int]:
        """Return the token ids after the prefix, up to the place where head tokens follow."""
        values = {
            "instruction": instruction,
            "observation": observation,
            "environment": json.dumps([observation] if observation else [], ensure_ascii=False),
            "history": self._separator.join(history[-HISTORY_LIMIT:]),
        }
        return self._encode(self.parts[self._prefix_parts :], values)

    def state_ids(self, state: str) -> list[int]:
        """Return the token ids of a prompt for questions about a state: the template up to the observation, without
        tools, history and instruction."""
        state_json = json.dumps([state], ensure_ascii=False)
        return self._encode(self._split_after_state()[0], {**EMPTY, "observation": state, "environment": state_json})

    def question_ids(self, question: str) -> list[int]:
        """Return the token ids of a question after `state_ids`, up to the place where head tokens follow. The question
        replaces the instruction; if the instruction is before the state, the question is put on a new line."""
        return self._encode(self._split_after_state()[1], {**EMPTY, "instruction": question})

    def _split_after_state(self) -> tuple[list[PromptPart], list[PromptPart]]:
        at, cut = max(
            (i, j + 1)
            for i, part in enumerate(self.parts)
            for j, piece in enumerate(part.pieces)
            if piece in ((True, "observation"), (True, "environment"))
        )
        pieces, rest = self.parts[at].pieces, self.parts[at + 1 :]
        after: list[PromptPart] = [PromptPart(None, pieces[cut:]), *rest]
        if not any((True, "instruction") in part.pieces for part in after):
            after[0] = PromptPart(None, ((False, "\n"), (True, "instruction"), *pieces[cut:]))
        return [*self.parts[:at], PromptPart(None, pieces[:cut])], after

    def _count_prefix_parts(self) -> int:
        changing = next((i for i, p in enumerate(self.parts) if not p.uses_only(("tools",))), len(self.parts))
        return max((i + 1 for i in range(changing) if self.parts[i].special is not None), default=0)

    def _encode_text(self, part: PromptPart, text: str) -> list[int]:
        if not part.uses_only(("instruction", "history")):
            return self._tokenizer.encode(text)
        cached = self._cached_ids.get(part)  # the ids are cached, because instruction and history rarely change
        if cached is None or cached[0] != text:
            cached = self._cached_ids[part] = (text, self._tokenizer.encode(text))
        return cached[1]

    def _encode(self, parts: Sequence[PromptPart], values: Mapping[str, str]) -> list[int]:
        ids: list[int] = []
        for part in parts:
            if part.special is not None:
                ids.append(part.special)
            else:
                text = "".join(values[piece] if is_variable else piece for is_variable, piece in part.pieces)
                ids.extend(self._encode_text(part, text) if text else ())
        return ids


def tools_text(tools: Sequence[ToolSchema]) -> str:
    """Return the value of `{tools}`: one canonical JSON object per line."""
    return "\n".join(t.canonical_json() for t in tools)


def _parse(template: str, tokenizer: STTokenizer) -> tuple[PromptPart, ...]:
    parts: list[PromptPart] = []
    for piece in tokenizer.split_added_tokens(template):
        if isinstance(piece, int):
            parts.append(PromptPart(piece))
            continue
        names = re.split(f"{{({'|'.join(VARIABLES)})}}", piece)
        run = ((i % 2 == 1, text) for i, text in enumerate(names) if text)
        parts.append(PromptPart(None, tuple(run)))
    return tuple(parts)
