"""The 17 special tokens of the ST format, and what their embeddings start from (paper, appendix "Special Token
Definitions"; design, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rtcontrol.models.schema import MAX_HEADS

if TYPE_CHECKING:
    import torch

    from rtcontrol.models.tokenizer import STTokenizer

NULL = "<|null|>"
FUNCTION = "function"
ARGUMENTS = tuple(f"arg{k}" for k in range(1, MAX_HEADS + 1))
HEADS = ("content", FUNCTION, *ARGUMENTS)
ST_TOKENS = (*(t for head in HEADS for t in (f"<{head}>", f"</{head}>")), NULL)

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
# The words whose rows are averaged into a new token's row. A base tokenizer may split a word; its pieces all count.
INITIAL_WORDS: dict[str, tuple[str, ...]] = {
    "<content>": ("content", "response", "answer", "<", ">"),
    "</content>": ("content", "end", "stop", "</", ">"),
    "<function>": ("function", "call", "name", "<", ">"),
    "</function>": ("function", "end", "stop", "</", ">"),
    NULL: ("null", "none", "empty", "nothing"),
    **{
        f"<arg{k}>": ("argument", "parameter", "value", str(k), word, "<", ">")
        for k, word in enumerate(_ORDINALS, start=1)
    },
    **{f"</arg{k}>": ("argument", "end", "stop", str(k), word, "</", ">") for k, word in enumerate(_ORDINALS, start=1)},
}


def opening(head: str) -> str:
    """The token that starts a head: `function` -> `<function>`."""
    return f"<{head}>"


def closing(head: str) -> str:
    """The token that ends a head."""
    return f"</{head}>"


def initialise_rows(weight: torch.Tensor, tokenizer: STTokenizer, tokens: Sequence[str] = ST_TOKENS) -> None:
    """Set the rows of `tokens` in an embedding or LM head `weight` [vocabulary, hidden], in place, to the mean of the
    rows of their related words' tokens."""
    import torch

    with torch.no_grad():
        for token in tokens:
            ids = [i for word in INITIAL_WORDS[token] for i in tokenizer.encode(word)]
            weight[tokenizer.special_id(token)] = weight[ids].float().mean(0).to(weight.dtype)
