"""How families of chat models write a tool call: the text between the values that are decided."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any

from rtcontrol.models.domain import json_text
from rtcontrol.models.errors import UserError
from rtcontrol.models.tokenizer import STTokenizer


@dataclass(frozen=True)
class CallSyntax:
    """A call is `opening` NAME `arguments` KEY VALUE `separator` KEY VALUE ... `closing`, or `opening` NAME `empty`
    where it has no arguments. A key is written by `key` with `{}` for its name. A text stands between two `quote`s,
    where JSON would have it with JSON's escapes; `space` is before a value, and behind the separators within it.
    `orders` is what the model is told to do, in the turn of `role`."""

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
        """Whether texts have JSON's escapes."""
        return self.quote == '"'

    @classmethod
    def declared(cls, given: Any, where: str) -> CallSyntax:
        """From a checkpoint's own file. Raises UserError."""
        known = {f.name for f in fields(cls)}
        needed = {f.name for f in fields(cls) if f.default is MISSING}
        good = isinstance(given, Mapping) and needed <= set(given) <= known
        if not good or not all(isinstance(v, str) for v in given.values()) or "{}" not in given["key"]:
            raise UserError(
                f"{where}: `syntax` does not say how a tool call is written.",
                f"Write texts for {', '.join(sorted(needed))}; `key` holds {{}} for the parameter's name.",
            )
        return cls(**given)

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


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
    orders="You are a model that can do function calling with the following functions",  # without it, it calls none
)
# What in a chat template tells the family, the more telling first.
FAMILIES = (
    ("<start_function_call>", GEMMA),
    ("[ARGS]", MISTRAL_NAMED),
    ("[TOOL_CALLS] [", MISTRAL_SPACED),
    ("[TOOL_CALLS]", MISTRAL),
    ("<tool_call>", HERMES),
    ('"parameters":', LLAMA3),
)


def syntax_of(chat_template: str, where: str) -> CallSyntax:
    """The syntax that a chat template belongs to. Raises UserError for an unknown one."""
    for sign, syntax in FAMILIES:
        if sign in chat_template:
            return syntax
    if "tools" not in chat_template:
        raise UserError(f"{where}: its chat template leaves out the tools.", "Use a checkpoint that calls tools.")
    raise UserError(
        f"{where}: its chat template has no tool calls that are known here (Qwen, Llama 3, Mistral, FunctionGemma).",
        'Declare them: a file st_template.json beside the weights with {"profile": "chat", "syntax": {...}} '
        "(docs/chat.md has a whole one).",
    )


def encode_marked(tokenizer: STTokenizer, text: str) -> list[int]:
    """Token ids of a text of ours: added tokens are control, what stands between two of them is encoded alone."""
    ids: list[int] = []
    marks = sorted(tokenizer.specials, key=len, reverse=True)
    for piece in re.split(f"({'|'.join(map(re.escape, marks))})", text) if marks else [text]:
        if piece in tokenizer.specials:
            ids.append(tokenizer.special_id(piece))
        elif piece:
            ids += tokenizer.encode(piece)
    return ids


def text_of(syntax: CallSyntax, value: Any, within: bool) -> str:
    """A value as it stands in a call, but for the quote behind a text; `within` the quotes, where they stand with what
    is around it."""
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)[1:-1] if syntax.escaped else value
        return text if within else f"{syntax.space}{syntax.quote}{text}"
    return f"{syntax.space}{json_text(value, syntax.space)}"


def encode_value(tokenizer: STTokenizer, text: str, syntax: CallSyntax) -> list[int]:
    """A value's tokens: text but for a quote before it that is an added token."""
    if syntax.quote in tokenizer.specials and text.startswith(syntax.quote):
        return [tokenizer.special_id(syntax.quote), *tokenizer.encode(text.removeprefix(syntax.quote))]
    return tokenizer.encode(text)
