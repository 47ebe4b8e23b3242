"""Chat templates: render the prompt of a chat model, and describe the syntax in which the model writes tool calls."""

from __future__ import annotations

import json
import re
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
    """The syntax of a tool call in one family of chat models. A call is `opening` NAME `arguments` KEY VALUE
    `separator` KEY VALUE ... `closing`; a call without arguments is `opening` NAME `empty`. `key` is the format of a
    key. A string has a `quote` on both sides. `space` precedes each value, and follows separators within a value. A
    message with the role `role` and the text `system_text` instructs the model to call tools."""

    opening: str
    arguments: str
    key: str
    separator: str
    closing: str
    empty: str
    quote: str = '"'
    space: str = " "
    role: str = "system"
    system_text: str = (
        "You control a robot or a game character in real time. Each message tells an instruction and what is observed. "
        "Answer with exactly one function call."
    )

    @property
    def escaped(self) -> bool:
        """Return whether strings are escaped as in JSON."""
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
    system_text="You are a model that can do function calling with the following functions",  # the model requires it
)
# Pairs of a string in a chat template and the call syntax of the models with such templates. The first match is used.
FAMILIES = (
    ("<start_function_call>", GEMMA),
    ("[ARGS]", MISTRAL_NAMED),
    ("[TOOL_CALLS] [", MISTRAL_SPACED),
    ("[TOOL_CALLS]", MISTRAL),
    ("<tool_call>", HERMES),
    ('"parameters":', LLAMA3),
)
# An example call. RAW_CALLS is how its text starts if the template only writes the message as JSON.
NAME, KEY, VALUE, RAW_CALLS = "a_tool", "its_argument", "the value", '[{"id":'
OTHER_FORMS = ("<function=", "<arg_key>", "<tool_sep>")  # call syntax of Qwen3-Coder, GLM 4.5 and Hunyuan


def syntax_of(chat_template: str, where: str) -> CallSyntax:
    """Return the call syntax that a chat template uses; `where` names the checkpoint in errors. Raises UserError if the
    syntax is unknown, or the template ignores tools."""
    for marker, syntax in FAMILIES:
        if marker in chat_template:
            return syntax
    if "tools" not in chat_template:
        raise UserError(f"{where}: its chat template ignores tools.", "Use a checkpoint that can call tools.")
    raise _unknown_form(where, "tool calls")


def _unknown_form(where: str, calls: str) -> UserError:
    """Return the UserError for a template that writes `calls` in an unknown form."""
    return UserError(
        f"{where}: its chat template writes {calls} in none of the known forms (Qwen 2.5 and 3, Llama 3, Mistral, "
        "FunctionGemma).",
        "Use such a checkpoint, or run this one on a server: --model chat:URL#NAME (docs/engines.md).",
    )


def call_value_text(syntax: CallSyntax, value: Any, inside_quotes: bool) -> str:
    """Return the text of an argument's value. A string has no closing quote; with `inside_quotes` no opening quote."""
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)[1:-1] if syntax.escaped else value
        return text if inside_quotes else f"{syntax.space}{syntax.quote}{text}"
    return f"{syntax.space}{json_text(value, syntax.space)}"


def encode_value(tokenizer: STTokenizer, text: str, syntax: CallSyntax) -> list[int]:
    """Return the token ids of a value's text. An opening quote that is an added token is encoded as this token."""
    if syntax.quote in tokenizer.specials and text.startswith(syntax.quote):
        return [tokenizer.special_id(syntax.quote), *tokenizer.encode(text.removeprefix(syntax.quote))]
    return tokenizer.encode(text)


# Some templates insert today's date. This fixed date replaces it, because the prompt must not change during a run.
DATE = "26 Jul 2024"  # the default date of Llama 3's template
FIXED_DATE = (
    f"{{%- macro strftime_now(form) -%}}{{{{ '2024-07-26' if form.startswith('%Y') else '{DATE}' }}}}{{%- endmacro %}}"
)


@dataclass(frozen=True)
class UserTurn:
    """A prompt with a gap for the user's text: the token ids of its `prefix`, the texts directly `before` and `after`
    the gap, and the token ids of the `rest`."""

    prefix: list[int]
    before: str
    after: str
    rest: list[int]


class ChatTemplate:
    """The prompt template of a chat checkpoint. Raises UserError if the checkpoint has no usable chat template."""

    profile = "chat"
    overflow: Overflow = "merge"

    def __init__(self, folder: Path, tokenizer: STTokenizer) -> None:
        self._tokenizer = tokenizer
        self._where, reason = str(folder), "there is none"
        try:
            files = sorted([*folder.glob("tokenizer*"), *folder.glob("chat_template*")])
            self._renderer = _load_renderer(folder, tuple((p.name, p.stat().st_mtime_ns) for p in files))
            template = self._renderer.chat_template and self._renderer.get_chat_template()
        except Exception as error:  # a template may raise any error
            template, reason = None, str(error).partition("\n")[0][:200]
        if not template:
            raise UserError(
                f"{folder} is neither an ST model nor a chat model: its chat template cannot be used ({reason}).",
                "Use an instruct checkpoint or an ST checkpoint (`rtcontrol models info`), or convert it with "
                f"`rtcontrol models adopt --base {folder} --out FOLDER`, and train the result.",
            )
        self._template = str(template)
        self._turn = UserTurn([], "", "", [])

    @cached_property
    def syntax(self) -> CallSyntax:
        """Return the syntax of a tool call. Raises UserError if it is unknown."""
        syntax = syntax_of(self._template, self._where)
        written = self._example_call()
        value = call_value_text(syntax, VALUE, False)
        start = f"{syntax.opening}{NAME}{syntax.arguments}{syntax.key.replace('{}', KEY)}{value}{syntax.quote}"
        known = [re.sub(r"\s", "", form) for form in (start, RAW_CALLS)]
        if written and not re.sub(r"\s", "", written).startswith(tuple(known)):
            raise _unknown_form(self._where, f"a tool call as {written[:80]!r},")
        if not written and any(mark in self._template for mark in OTHER_FORMS):
            raise _unknown_form(self._where, "tool calls")
        return syntax

    def _example_call(self) -> str:
        """Return the text of a call as the template writes it in an assistant's message; "" if it writes no calls."""
        parameters = {"type": "object", "properties": {KEY: {"type": "string"}}, "required": [KEY]}
        tools = [ToolSchema.from_openai({"name": NAME, "parameters": parameters}).to_openai()]
        user, answer = {"role": "user", "content": NAME}, {"role": "assistant", "content": ""}
        for arguments in ({KEY: VALUE}, json.dumps({KEY: VALUE})):
            call = {"id": "a1b2c3d4e", "type": "function", "function": {"name": NAME, "arguments": arguments}}
            with suppress(Exception):  # a template may raise any error
                text = self._render_text([user, {**answer, "content": VALUE}], tools)
                written = self._render_text([user, {**answer, "tool_calls": [call]}], tools)
                first = next((i for i, (a, b) in enumerate(zip(text, written, strict=False)) if a != b), len(text))
                written = written[first:].lstrip()  # drop the text that starts every message of this role
                if NAME in written:
                    return written
        return ""

    def prefix_ids(self, tools: Sequence[ToolSchema]) -> list[int]:
        """Return the token ids of the prompt's cacheable part, which ends with the last control token or line break
        before the user's text."""
        system_text = {"role": self.syntax.role, "content": self.syntax.system_text}
        self._turn = self._with_user_turn([system_text], tools)
        return self._turn.prefix

    def suffix_ids(self, instruction: str, observation: str, history: Sequence[str] = ()) -> list[int]:
        """Return the token ids of the prompt after the prefix, up to the place where the model starts a call."""
        calls = "; ".join(history[-HISTORY_LIMIT:])
        content = "\n\n".join(t for t in (instruction, calls and f"Calls so far: {calls}", observation) if t)
        return [*self._tokenizer.encode(f"{self._turn.before}{content}{self._turn.after}"), *self._turn.rest]

    def user_turn(self) -> UserTurn:
        """Return the prompt of a single user message, without tools or a system message. Raises UserError if the
        template cannot render it."""
        return self._with_user_turn([], ())

    def end_token_id(self) -> int:
        """Return the id of the control token that ends the model's answer. Raises UserError if it is unknown."""
        words = f"ANSWER{secrets.token_hex(8)}"
        turns = [{"role": "user", "content": words.lower()}, {"role": "assistant", "content": words}]
        with suppress(UserError):
            pieces = iter(self._render(turns, (), add_generation_prompt=False))
            if any(isinstance(piece, str) and words in piece for piece in pieces):
                for piece in pieces:
                    if isinstance(piece, int):
                        return piece
        if (end := self._renderer.eos_token) in self._tokenizer.specials:
            return self._tokenizer.special_id(end)
        problem = f"{self._where}: the token that ends an answer is unknown."
        raise UserError(problem, "Set `eos_token` in its tokenizer_config.json.")

    def _with_user_turn(self, before: Sequence[Mapping[str, str]], tools: Sequence[ToolSchema]) -> UserTurn:
        """Return the prompt with the messages `before`, and a user message whose text is left open."""
        place = f"CONTENT{secrets.token_hex(8)}"
        pieces = self._render([*before, {"role": "user", "content": place}], tools, add_generation_prompt=True)
        if sum(piece.count(place) for piece in pieces if isinstance(piece, str)) != 1:
            raise self._unusable_error("leaves out the user's message")
        at = next(i for i, piece in enumerate(pieces) if isinstance(piece, str) and place in piece)
        text, _, after = str(pieces[at]).partition(place)
        # A line break is a separate token. Cut after it, so that the text before it (Llama 3: the tools) can be cached.
        cut = text.rfind("\n") + 1
        encode = self._tokenizer.encode_pieces
        return UserTurn(encode([*pieces[:at], text[:cut]]), text[cut:], after, encode(pieces[at + 1 :]))

    def _render(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[ToolSchema], **options: bool
    ) -> list[int | str]:
        """Render messages with the template. Return the ids of control tokens and the texts between them. Text in tool
        definitions never becomes a control token."""
        words = {mark: f"MARK{secrets.token_hex(8)}" for mark in self._tokenizer.specials}
        try:
            text = self._render_text(messages, _replace_words([t.to_openai() for t in tools], words), **options)
        except Exception as error:  # a template may raise any error
            reason = (str(error) or repr(error)).splitlines()[0][:200]
            raise self._unusable_error(f"does not accept tools, or a system or user message alone ({reason})") from None
        if tools and _replace_words(tools[0].name, words) not in text:
            raise self._unusable_error("ignores tools")
        marks = {word: mark for mark, word in words.items()}
        pieces = self._tokenizer.split_added_tokens(text)
        return [_replace_words(piece, marks) if isinstance(piece, str) else piece for piece in pieces]

    def _render_text(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], **options: bool) -> str:
        """Return the text of messages and tools. A template may raise any error."""
        settings = {"date_string": DATE, "chat_template": FIXED_DATE + self._template, "enable_thinking": False}
        return str(
            self._renderer.apply_chat_template(messages, tools=tools or None, tokenize=False, **settings, **options)
        )

    def _unusable_error(self, problem: str) -> UserError:
        return UserError(
            f"{self._where}: its chat template {problem}.", "Use a checkpoint that was trained to call tools."
        )


@lru_cache(maxsize=4)
def _load_renderer(folder: Path, files: Any) -> Any:
    """Load transformers' tokenizer of a folder, cached by the names and times of its `files`."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def _replace_words(value: Any, words: Mapping[str, str]) -> Any:
    """Replace words in all strings of a JSON value by the values of `words`, longer words first."""
    if isinstance(value, str):
        for word in sorted(words, key=len, reverse=True):
            value = value.replace(word, words[word])
        return value
    if isinstance(value, Mapping):
        return {_replace_words(str(k), words): _replace_words(v, words) for k, v in value.items()}
    return [_replace_words(v, words) for v in value] if isinstance(value, list | tuple) else value
