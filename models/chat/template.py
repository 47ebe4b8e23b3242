"""A chat checkpoint's prompt: its own chat template with `tools`, rendered once; what is said and seen is put in later.

Text is never control here either: what stands in a tool, an instruction or an observation and looks like a token of the
template stays text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from rtcontrol.models.chat.syntax import CallSyntax, syntax_of
from rtcontrol.models.errors import UserError
from rtcontrol.models.prompt import FILE_NAME, HISTORY_LIMIT, RESTORE
from rtcontrol.models.schema import Overflow, ToolSchema
from rtcontrol.models.tokenizer import STTokenizer

# Some templates tell today's date: a prompt must not change while a run goes on.
DATE = "26 Jul 2024"  # Llama 3's own where nobody gives one
DATED = (
    f"{{%- macro strftime_now(form) -%}}{{{{ '2024-07-26' if form.startswith('%Y') else '{DATE}' }}}}{{%- endmacro %}}"
)


class ChatTemplate:
    """The prompt of a checkpoint that was trained to chat. Raises UserError where it has no template for tools."""

    profile = "chat"
    content = False  # a chat model's own words are no head
    overflow: Overflow = "merge"

    def __init__(self, folder: Path, tokenizer: STTokenizer) -> None:
        self._tokenizer = tokenizer
        self._where, reason = str(folder), "there is none"
        try:
            files = sorted([*folder.glob("tokenizer*"), *folder.glob("chat_template*")])
            self._renderer = _renderer(folder, tuple((p.name, p.stat().st_mtime_ns) for p in files))
            template = self._renderer.chat_template and self._renderer.get_chat_template()
        except Exception as error:  # the library raises what its files raise
            template, reason = None, str(error).partition("\n")[0][:200]
        if not template:
            raise UserError(
                f"{folder} is no ST model, and no chat model: its chat template cannot be used ({reason}).",
                "Use an instruct checkpoint or an ST checkpoint (`rtcontrol models info`), or make one of it with "
                "`rtcontrol models adopt`.",
            )
        self._template, own = str(template), _declared(folder)
        self.syntax = (
            CallSyntax.declared(own["syntax"], str(folder / FILE_NAME))
            if "syntax" in own
            else syntax_of(self._template, str(folder))
        )
        self._orders = str(own.get("system", self.syntax.orders))
        self._prefix: list[int] = []
        self._pieces: list[int | str] = []  # behind the prefix: control tokens, and text with the content's place
        self._content = f"CONTENT{secrets.token_hex(8)}"

    def prefix_ids(self, tools: Sequence[ToolSchema]) -> list[int]:
        """The ids up to the last control token before what is said: the part to be cached."""
        marks = {mark: f"MARK{secrets.token_hex(8)}" for mark in self._tokenizer.specials}
        shown = _hidden([t.to_openai() for t in tools], marks)
        messages = [
            {"role": self.syntax.role, "content": self._orders},
            {"role": "user", "content": self._content},
        ]
        try:
            text = self._renderer.apply_chat_template(
                messages,
                tools=shown,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=False,
                date_string=DATE,
                chat_template=DATED + self._template,
            )
        except Exception as error:  # templates raise what their authors thought of
            reason = str(error).splitlines()[0][:200]
            raise UserError(
                f"{self._where}: its chat template takes no tools, or no {self.syntax.role} turn ({reason}).",
                f"Declare another role or syntax in {FILE_NAME} beside the weights.",
            ) from None
        if text.count(self._content) != 1 or (tools and marks_free(tools[0].name, marks) not in text):
            raise UserError(
                f"{self._where}: its chat template leaves out the tools or the user's turn.",
                "Use a checkpoint that was trained to call tools.",
            )
        pieces = self._parsed(text, {word: mark for mark, word in marks.items()})
        at = next(i for i, piece in enumerate(pieces) if isinstance(piece, str) and self._content in piece)
        # A line's end is a token of its own: what stands before it (the tools, of Llama 3) is cached, too.
        cut = str(pieces[at]).partition(self._content)[0].rfind("\n") + 1
        before, self._pieces = [*pieces[:at], str(pieces[at])[:cut]], [str(pieces[at])[cut:], *pieces[at + 1 :]]
        return [i for p in before for i in (self._tokenizer.encode(p) if isinstance(p, str) else [p])]

    def _parsed(self, text: str, words: Mapping[str, str]) -> list[int | str]:
        marks = sorted(self._tokenizer.specials, key=len, reverse=True)
        found: list[int | str] = []
        for piece in re.split(f"({'|'.join(map(re.escape, marks))})", text) if marks else [text]:
            if piece in words.values():
                found.append(self._tokenizer.special_id(piece))
            elif piece:
                for word, mark in words.items():
                    piece = piece.replace(word, mark)
                found.append(piece)
        return found

    def suffix_ids(self, instruction: str, observation: str, history: Sequence[str] = ()) -> list[int]:
        """Everything after the prefix, up to where a call begins."""
        calls = "; ".join(history[-HISTORY_LIMIT:])
        content = "\n\n".join(t for t in (instruction, calls and f"Calls so far: {calls}", observation) if t)
        ids: list[int] = []
        for piece in self._pieces:
            if isinstance(piece, str):
                ids += self._tokenizer.encode(piece.replace(self._content, content))
            else:
                ids.append(piece)
        return ids


@lru_cache(maxsize=4)
def _renderer(folder: Path, files: Any) -> Any:
    """The library's tokenizer: of a large vocabulary it takes seconds to load."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


def _declared(folder: Path) -> Mapping[str, Any]:
    path = folder / FILE_NAME
    if not path.exists():
        return {}
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}).", RESTORE) from None
    if not isinstance(config, Mapping) or config.get("profile") != "chat":
        raise UserError(f"{path} is no chat template.", 'Write {"profile": "chat", ...}, or remove it.')
    return config


def marks_free(text: str, marks: Mapping[str, str]) -> str:
    """The text with words of ours for what would be control tokens."""
    for mark in sorted(marks, key=len, reverse=True):
        text = text.replace(mark, marks[mark])
    return text


def _hidden(value: Any, marks: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return marks_free(value, marks)
    if isinstance(value, Mapping):
        return {marks_free(str(k), marks): _hidden(v, marks) for k, v in value.items()}
    return [_hidden(v, marks) for v in value] if isinstance(value, list | tuple) else value
