"""Define the 17 special tokens of the ST format (SimpleTool paper, appendix "Special Token Definitions")."""

from __future__ import annotations

from rtcontrol.models.schema.tool_schema import MAX_HEADS

NULL = "<|null|>"
FUNCTION = "function"
ARGUMENTS = tuple(f"arg{k}" for k in range(1, MAX_HEADS + 1))
HEADS = ("content", FUNCTION, *ARGUMENTS)
ST_TOKENS = (*(t for head in HEADS for t in (f"<{head}>", f"</{head}>")), NULL)


def head_start(head: str) -> str:
    """Return the token that starts a head: `<function>` for the head `function`."""
    return f"<{head}>"


def head_end(head: str) -> str:
    """Return the token that ends a head: `</function>` for the head `function`."""
    return f"</{head}>"
