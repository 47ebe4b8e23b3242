"""What the ST tokens' embeddings start from (paper, appendix "Special Token Definitions"; design, section 3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rtcontrol.models.special import NULL, ST_TOKENS
from rtcontrol.models.tokenizer import STTokenizer

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


def initialise_rows(weight: torch.Tensor, tokenizer: STTokenizer, tokens: Sequence[str] = ST_TOKENS) -> None:
    """Set the rows of `tokens` in an embedding or LM head `weight` [vocabulary, hidden], in place, to the mean of the
    rows of their related words' tokens."""
    with torch.no_grad():
        for token in tokens:
            ids = [i for word in INITIAL_WORDS[token] for i in tokenizer.encode(word)]
            weight[tokenizer.special_id(token)] = weight[ids].float().mean(0).to(weight.dtype)
