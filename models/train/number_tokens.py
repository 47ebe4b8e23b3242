"""Numbers as single tokens of a base model, which begin in their order: what a controller reads most.

A base spells `-12` in three tokens, and nothing in them says that it stands between -13 and -11. Here each number from
-200 to 200, and each of two decimals up to 2, is one token with a row of its own, with and without a space before it.
All other text, longer numbers and names with digits among it, keeps the base's tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import torch
from tokenizers import Tokenizer

from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.scratch import number_values, ordinal_waves
from rtcontrol.models.train.vocabulary import number_words

# A number that stands alone, of no date, time, version or name; `{space}` is what the tokenizer writes for a space.
# Every other digit is a piece.
SIZE = r"(?:[01]\.[0-9]{{1,2}}|2\.00?|200|1[0-9][0-9]|[1-9]?[0-9])"
BEFORE = r"(?<![\p{{L}}\p{{N}}_.])(?<![\p{{L}}\p{{N}}][-/:,])"
BEHIND = r"(?![\p{{L}}\p{{N}}_]|[-./:,]\p{{N}})"
ALONE = rf"(?:{{space}}|{BEFORE})-?{SIZE}{BEHIND}|[0-9]"
SHARE = 0.7  # of a row's length is the number's place in the order; the rest is the mean of its digits' rows
NUMBER = re.compile(r"[Ġ▁]?-?[0-9]+(\.[0-9]*)?")  # `0.` is what 0.7 is joined from
UNKNOWN = "The base's tokenizer cuts text in a way that is not known here."
REMEDY = "Leave --numbers out."


def with_number_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """A copy whose stand-alone numbers are single tokens, at its highest ids. Raises UserError for a tokenizer that is
    not of byte pairs, has numbers as tokens already, or cuts text in a way that is not known."""
    made, before = json.loads(tokenizer.to_str()), STTokenizer(tokenizer)
    if made["model"]["type"] != "BPE":
        raise UserError(f"A tokenizer of type {made['model']['type']} cannot be given numbers.", REMEDY)
    pieces, normalizer = made["pre_tokenizer"], json.dumps(made["normalizer"], ensure_ascii=False)
    if '"Prepend"' in normalizer:
        raise UserError("The base's tokenizer puts a space before every text: it cannot be given numbers.", REMEDY)
    if '"▁"' in normalizer:  # SentencePiece: a space is a letter
        space, first = "▁", _split(ALONE.format(space="▁"))
        made["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [first, *([pieces] if pieces else [])]}
    elif (own := _first_split(pieces)) is not None:
        space = "Ġ"
        own["pattern"] = {"Regex": f"{ALONE.format(space=' ')}|{own['pattern']['Regex']}"}
    else:
        raise UserError(UNKNOWN, REMEDY)
    if before.digits is None:
        raise UserError("The base's tokenizer has numbers of several digits as tokens already.", REMEDY)
    vocabulary = made["model"]["vocab"]
    # Tokens that the model does not list stand below the new ones, too: the library counts what it lists.
    vocabulary |= {token["content"]: token["id"] for token in made["added_tokens"]}
    joined, free = _merges(space, vocabulary), 1 + max(vocabulary.values(), default=-1)
    new = sorted({a + b for a, b in joined} - {*vocabulary})  # the same in every process
    vocabulary |= {text: free + i for i, text in enumerate(new)}
    listed = made["model"]["merges"] and isinstance(made["model"]["merges"][0], list)
    made["model"]["merges"] += [list(pair) if listed else " ".join(pair) for pair in joined]
    found = Tokenizer.from_str(json.dumps(made))
    _check(before, STTokenizer(found))
    return found


def _check(before: STTokenizer, after: STTokenizer) -> None:
    """Numbers are single tokens, and no text became a control token. Raises UserError."""
    forms = [form for word in number_words() for form in (word, f" {word}")]
    if any(len(after.encode(form)) > 1 for form in forms):
        raise UserError(UNKNOWN, REMEDY)
    control = {after.special_id(name) for name in after.specials}
    for name in after.specials:
        if control & {*after.encode(name)} - {*before.encode(name)}:
            raise UserError(f"The base's tokenizer would read the text {name!r} as control.", REMEDY)


def _merges(space: str, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """What joins the characters of every number, the first to be tried first. Each pair has a digit: it joins nothing
    but a number's pieces, since every other digit is a piece of its own."""
    words = number_words()
    bare = [word for word in words if word[0] != "-"]
    decimals, whole = [w for w in bare if "." in w], [w for w in bare if "." not in w and len(w) > 1]
    # Of 110 the first two digits are joined first, so 11 comes before 10.
    whole.sort(key=lambda w: (len(w), w != "11", w[0] != "1", int(w)))
    made = dict.fromkeys((w[0], ".") for w in decimals)
    made |= dict.fromkeys((w[:-1], w[-1]) for w in [*sorted(decimals, key=len), *whole])
    signs = ["-", f"{space}-"] if f"{space}-" in vocabulary else ["-"]
    made |= dict.fromkeys((sign, w[1:]) for sign in signs for w in words if w[0] == "-")
    return [*made, *((space, word) for word in words)]


def number_ids(tokenizer: Tokenizer) -> dict[int, str]:
    """The tokens that `with_number_tokens` added, which stand before the ST tokens; none where it never did."""
    ids = [i for t in ST_TOKENS if (i := tokenizer.token_to_id(t)) is not None]
    found, at = dict[int, str](), min(ids, default=tokenizer.get_vocab_size()) - 1
    while (text := tokenizer.id_to_token(at)) is not None and NUMBER.fullmatch(text):
        found[at], at = text, at - 1
    return dict(sorted(found.items()))


def initialise_number_rows(weight: torch.Tensor, tokenizer: Tokenizer, before: STTokenizer) -> None:
    """Set the rows of a tokenizer's own numbers in `weight` [vocabulary, hidden], in place: the mean of the rows of the
    tokens that they had `before`, and a pattern of the value, at the length of the other rows."""
    own = number_ids(tokenizer)
    if not own:
        return
    with torch.no_grad():
        texts = [text.replace("Ġ", " ").replace("▁", " ") for text in own.values()]
        mean = torch.stack([weight[before.encode(text)].float().mean(0) for text in texts])
        if weight.dim() == 1:  # a bias
            weight[list(own)] = mean.to(weight.dtype)
            return
        waves = ordinal_waves(number_values(own.values()), weight.shape[1] // 4)
        # The same for every cut of a base: what one learns another can be taught.
        turn = torch.randn(waves.shape[1], weight.shape[1], generator=torch.Generator().manual_seed(0))
        rows = (1 - SHARE) * _unit(mean) + SHARE * _unit(waves @ turn)
        weight[list(own)] = (_unit(rows) * weight[: min(own)].float().norm(dim=1).median()).to(weight.dtype)


def _unit(rows: torch.Tensor) -> torch.Tensor:
    return rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-6)


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _first_split(pieces: Any) -> dict[str, Any] | None:
    """The split by a pattern that a byte-level tokenizer begins with (Qwen, Llama 3)."""
    first: dict[str, Any] = next(iter((pieces or {}).get("pretokenizers", ())), {})
    plain = first.get("type") == "Split" and first["behavior"] == "Isolated" and not first["invert"]
    return first if plain and "Regex" in first["pattern"] else None
