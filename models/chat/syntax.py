"""How families of chat models write a tool call: the text between the values that are decided."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from rtcontrol.models.domain import json_text
from rtcontrol.models.errors import UserError
from rtcontrol.models.tokenizer import STTokenizer


@dataclass(frozen=True)
class CallSyntax:
    """A call is `opening` NAME `arguments` KEY VALUE `separator` KEY VALUE ... `closing`, or `opening` NAME `empty`
    where it has no arguments. A key is written by `key` with `{}` for its name. A text stands between two `quote`s,
    where JSON would have it with JSON's escapes; a value that is no text follows `space`."""

    opening: str
    arguments: str
    key: str
    separator: str
    closing: str
    empty: str
    quote: str = '"'
    space: str = " "
    role: str = "system"  # whose turn the standing orders are

    @property
    def escaped(self) -> bool:
        """Whether texts have JSON's escapes."""
        return self.quote == '"'

    @classmethod
    def declared(cls, given: Any, where: str) -> CallSyntax:
        """From a checkpoint's own file. Raises UserError."""
        known = {f.name for f in fields(cls)}
        needed = {f.name for f in fields(cls)} - {"quote", "space", "role"}
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
)
# What in a chat template tells the family, the more telling first.
FAMILIES = (
    ("<start_function_call>", GEMMA),
    ("[TOOL_CALLS]", MISTRAL),
    ("<tool_call>", HERMES),
    ('"parameters":', LLAMA3),
)


def syntax_of(chat_template: str, where: str) -> CallSyntax:
    """The syntax that a chat template belongs to. Raises UserError for an unknown one."""
    for sign, syntax in FAMILIES:
        if sign in chat_template:
            return syntax
    raise UserError(
        f"{where}: its chat template has no tool calls that are known here (Qwen, Llama 3, Mistral, FunctionGemma).",
        'Declare them: a file st_template.json beside the weights with {"profile": "chat", "syntax": {...}}.',
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


def text_of(syntax: CallSyntax, value: Any, quoted: bool) -> str:
    """A value as it stands in a call, without the quotes around a text whose place is `quoted`."""
    if quoted:
        return json.dumps(value, ensure_ascii=False)[1:-1] if syntax.escaped else str(value)
    if isinstance(value, str):
        return f"{syntax.space}{syntax.quote}{text_of(syntax, value, True)}{syntax.quote}"
    return f"{syntax.space}{json_text(value)}"
