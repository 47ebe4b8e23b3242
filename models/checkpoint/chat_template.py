"""Chat templates: the prompt of a chat model, and the text of a tool call around the decided values."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from rtcontrol.models.checkpoint.prompt import HISTORY_LIMIT
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import json_text
from rtcontrol.models.schema.tool_schema import Overflow, ToolSchema


@dataclass(frozen=True)
class CallSyntax:
    """The text of a tool call in one family of chat models. A call is `opening` NAME `arguments` KEY VALUE `separator`
    KEY VALUE ... `closing`, or `opening` NAME `empty` without arguments. `key` is the format of a key. A text has a
    `quote` on both sides, and JSON's escapes if the quote is JSON's; `space` precedes a value and follows its inner
    separators. `orders` is the text that tells the model to call tools, in a message of `role`."""

    opening: str
    arguments: str
    key: str
    separator: str
    closing: str
    empty: str
    quote: str = '"'
    space: str = " "
    role: str = "system"
    orders: str = (
        "You control a robot or a game character in real time. Each message tells an instruction and what is observed. "
        "Answer with exactly one function call."
    )

    @property
    def escaped(self) -> bool:
        """Return whether texts have JSON's escapes."""
        return self.quote == '"'


_JSON = {"key": '"{}":', "separator": ", "}
HERMES = CallSyntax(
    '<tool_call>\n{"name": "',
    '", "arguments": {',
    closing="}}\n</tool_call>",
    empty='", "arguments": {}}\n</tool_call>',
    **_JSON,
)
LLAMA3 = CallSyntax('{"name": "', '", "parameters": {', closing="}}", empty='", "parameters": {}}', **_JSON)
MISTRAL = CallSyntax(
    '[TOOL_CALLS][{"name": "', '", "arguments": {', closing="}}]", empty='", "arguments": {}}]', **_JSON
)
MISTRAL_SPACED = replace(MISTRAL, opening='[TOOL_CALLS] [{"name": "')
MISTRAL_NAMED = CallSyntax("[TOOL_CALLS]", "[ARGS]{", closing="}", empty="[ARGS]{}", **_JSON)
GEMMA = CallSyntax(
    "<start_function_call>call:",
    "{",
    key="{}:",
    separator=",",
    closing="}<end_function_call>",
    empty="{}<end_function_call>",
    quote="<escape>",
    space="",
    role="developer",
    orders="You are a model that can do function calling with the following functions",  # otherwise it calls none
)
# Strings in a chat template that identify the family, the more specific ones first.
FAMILIES = (
    ("<start_function_call>", GEMMA),
    ("[ARGS]", MISTRAL_NAMED),
    ("[TOOL_CALLS] [", MISTRAL_SPACED),
    ("[TOOL_CALLS]", MISTRAL),
    ("<tool_call>", HERMES),
    ('"parameters":', LLAMA3),
)


def syntax_of(chat_template: str, where: str) -> CallSyntax:
    """Return the syntax of a chat template. Raises UserError for an unknown one."""
    for sign, syntax in FAMILIES:
        if sign in chat_template:
            return syntax
    if "tools" not in chat_template:
        raise UserError(f"{where}: its chat template leaves out the tools.", "Use a checkpoint that calls tools.")
    raise UserError(
        f"{where}: its chat template has no known form of tool calls (Qwen, Llama 3, Mistral, FunctionGemma).",
        "Use one of these, or a server that runs it: --model chat:URL#NAME (docs/engines.md).",
    )


def text_of(syntax: CallSyntax, value: Any, within: bool) -> str:
    """Return the text of a value in a call, without the closing quote of a text; if `within`, without both quotes."""
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)[1:-1] if syntax.escaped else value
        return text if within else f"{syntax.space}{syntax.quote}{text}"
    return f"{syntax.space}{json_text(value, syntax.space)}"


def encode_value(tokenizer: STTokenizer, text: str, syntax: CallSyntax) -> list[int]:
    """Return the tokens of a value: plain text, except for an opening quote that is an added token."""
    if syntax.quote in tokenizer.specials and text.startswith(syntax.quote):
        return [tokenizer.special_id(syntax.quote), *tokenizer.encode(text.removeprefix(syntax.quote))]
    return tokenizer.encode(text)


# Some templates write today's date, but a prompt must not change during a run.
DATE = "26 Jul 2024"  # the default of Llama 3
DATED = (
    f"{{%- macro strftime_now(form) -%}}{{{{ '2024-07-26' if form.startswith('%Y') else '{DATE}' }}}}{{%- endmacro %}}"
)


@dataclass(frozen=True)
class UserTurn:
    """A prompt with a gap for the user's words: the ids of its `prefix`, the texts `before` and `behind` the words, and
    the ids after them (`rest`)."""

    prefix: list[int]
    before: str
    behind: str
    rest: list[int]


class ChatTemplate:
    """The prompt template of a chat checkpoint. Raises UserError if the checkpoint has no template for tools."""

    profile = "chat"
    content = False  # a chat model has no content head
    overflow: Overflow = "merge"

    def __init__(self, folder: Path, tokenizer: STTokenizer) -> None:
        self._tokenizer = tokenizer
        self._where, reason = str(folder), "there is none"
        try:
            files = sorted([*folder.glob("tokenizer*"), *folder.glob("chat_template*")])
            self._renderer = _renderer(folder, tuple((p.name, p.stat().st_mtime_ns) for p in files))
            template = self._renderer.chat_template and self._renderer.get_chat_template()
        except Exception as error:  # a template may raise anything
            template, reason = None, str(error).partition("\n")[0][:200]
        if not template:
            raise UserError(
                f"{folder} is neither an ST model nor a chat model: its chat template cannot be used ({reason}).",
                "Use an instruct checkpoint or an ST checkpoint (`rtcontrol models info`), or make one of it with "
                f"`rtcontrol models adopt --base {folder} --out FOLDER`, to be trained.",
            )
        self._template = str(template)
        self._turn = UserTurn([], "", "", [])

    @cached_property
    def syntax(self) -> CallSyntax:
        """Return the syntax of a call. Raises UserError if the template does not show the syntax."""
        return syntax_of(self._template, self._where)

    def prefix_ids(self, tools: Sequence[ToolSchema]) -> list[int]:
        """Return the ids up to the last control token before the user's words, which are the part to cache."""
        orders = {"role": self.syntax.role, "content": self.syntax.orders}
        self._turn = self._opened([orders], tools)
        return self._turn.prefix

    def suffix_ids(self, instruction: str, observation: str, history: Sequence[str] = ()) -> list[int]:
        """Return everything after the prefix, up to the start of a call."""
        calls = "; ".join(history[-HISTORY_LIMIT:])
        content = "\n\n".join(t for t in (instruction, calls and f"Calls so far: {calls}", observation) if t)
        return [*self._tokenizer.encode(f"{self._turn.before}{content}{self._turn.behind}"), *self._turn.rest]

    def user_turn(self) -> UserTurn:
        """Return the prompt of a user message alone, without tools or orders. Raises UserError if the template cannot
        write one."""
        return self._opened([], ())

    def ending(self) -> int:
        """Return the control token that ends the model's answer. Raises UserError if there is none."""
        words = f"SAID{secrets.token_hex(8)}"
        turns = [{"role": "user", "content": words.lower()}, {"role": "assistant", "content": words}]
        with suppress(UserError):
            pieces = iter(self._filled(turns, (), add_generation_prompt=False))
            if any(isinstance(piece, str) and words in piece for piece in pieces):
                for piece in pieces:
                    if isinstance(piece, int):
                        return piece
        if (end := self._renderer.eos_token) in self._tokenizer.specials:
            return self._tokenizer.special_id(end)
        problem = f"{self._where}: nothing tells how an answer ends."
        raise UserError(problem, "Name the `eos_token` in its tokenizer_config.json.")

    def _opened(self, before: Sequence[Mapping[str, str]], tools: Sequence[ToolSchema]) -> UserTurn:
        """Return the prompt of these messages and a user message with a gap."""
        place = f"CONTENT{secrets.token_hex(8)}"
        pieces = self._filled([*before, {"role": "user", "content": place}], tools, add_generation_prompt=True)
        if sum(piece.count(place) for piece in pieces if isinstance(piece, str)) != 1:
            raise self._unusable("leaves out the user's turn")
        at = next(i for i, piece in enumerate(pieces) if isinstance(piece, str) and place in piece)
        text, _, behind = str(pieces[at]).partition(place)
        # The end of a line is a separate token, so that the text before it (in Llama 3 the tools) is cached, too.
        cut = text.rfind("\n") + 1
        encode = self._tokenizer.encode_pieces
        return UserTurn(encode([*pieces[:at], text[:cut]]), text[cut:], behind, encode(pieces[at + 1 :]))

    def _filled(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[ToolSchema], **options: bool
    ) -> list[int | str]:
        """Return the output of the template: ids of control tokens, and the texts between them. Texts of tools never
        become control tokens."""
        words = {mark: f"MARK{secrets.token_hex(8)}" for mark in self._tokenizer.specials}
        try:
            text = self._renderer.apply_chat_template(
                messages,
                tools=_replaced([t.to_openai() for t in tools], words) or None,
                tokenize=False,
                enable_thinking=False,
                date_string=DATE,
                chat_template=DATED + self._template,
                **options,
            )
        except Exception as error:  # a template may raise any error
            reason = (str(error) or repr(error)).splitlines()[0][:200]
            raise self._unusable(f"takes no tools, or no turn of the system or user alone ({reason})") from None
        if tools and _replaced(tools[0].name, words) not in text:
            raise self._unusable("leaves out the tools")
        marks = {word: mark for mark, word in words.items()}
        pieces = self._tokenizer.pieces(text)
        return [_replaced(piece, marks) if isinstance(piece, str) else piece for piece in pieces]

    def _unusable(self, fault: str) -> UserError:
        return UserError(
            f"{self._where}: its chat template {fault}.", "Use a checkpoint that was trained to call tools."
        )


@lru_cache(maxsize=4)
def _renderer(folder: Path, files: Any) -> Any:
    """Load transformers' tokenizer, which takes seconds for a large vocabulary."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def _replaced(value: Any, words: Mapping[str, str]) -> Any:
    """Return a JSON value with `words` replaced in all its texts, the longest first."""
    if isinstance(value, str):
        for word in sorted(words, key=len, reverse=True):
            value = value.replace(word, words[word])
        return value
    if isinstance(value, Mapping):
        return {_replaced(str(k), words): _replaced(v, words) for k, v in value.items()}
    return [_replaced(v, words) for v in value] if isinstance(value, list | tuple) else value
