"""The tokenizer of a checkpoint, which never encodes text as control tokens."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakValueDictionary

from tokenizers import Tokenizer

from rtcontrol.models.errors import UserError

# Characters of a text that is so long that encoding should let other threads run.
LONG = 4096


class STTokenizer:
    """A tokenizer that encodes text with all added tokens disabled. `special_id` gives the id of such a token by name.

    A text that contains `<|im_end|>`, `<function>` or `<|null|>` is encoded like any other characters, and so are added
    tokens that are not marked special (`<tool_call>`, `<|fim_prefix|>` of Qwen2.5).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        # A copy, so that the settings below do not change the caller's object.
        self._take(Tokenizer.from_str(tokenizer.to_str()))

    def _take(self, tokenizer: Tokenizer) -> None:
        self._text = tokenizer
        tokenizer.encode_special_tokens = True
        tokenizer.no_padding()
        tokenizer.no_truncation()
        added = tokenizer.get_added_tokens_decoder()
        # The library's own setting covers only the special ones of the added tokens.
        tokenizer.add_special_tokens([t for t in added.values() if not t.special])
        self._special = {str(t.content): i for i, t in added.items()}

    def digest(self) -> str:
        """Return a hash that is equal for tokenizers with the same settings and vocabulary."""
        return hashlib.sha256(self._text.to_str().encode()).hexdigest()[:16]

    @classmethod
    def load(cls, path: Path) -> STTokenizer:
        """Read a `tokenizer.json`; callers share the tokenizer while it is in use. Raises UserError for another
        file."""
        try:
            found = path.stat()
            key = (str(path.resolve()), found.st_mtime_ns, found.st_size)
            known = _loaded.get(key)
            if known is None:
                known = cls.__new__(cls)
                known._take(Tokenizer.from_file(str(path)))  # a vocabulary of 150,000 takes a second to copy
                _loaded[key] = known
            return known
        except Exception as error:  # the library raises plain Exception
            raise UserError(
                f"{path} is not a tokenizer file ({error}).", "Point --model at a complete checkpoint folder."
            ) from error

    @property
    def size(self) -> int:
        """Return the number of ids, special tokens included."""
        return int(self._text.get_vocab_size(with_added_tokens=True))

    @property
    def specials(self) -> tuple[str, ...]:
        return tuple(self._special)

    def special_id(self, token: str) -> int:
        """Return the id of an added token. Raises KeyError for an unknown name."""
        return self._special[token]

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text; names of control tokens in it stay text."""
        try:
            if len(text) < LONG:
                return list(self._text.encode(text, add_special_tokens=False).ids)
            # The batch method lets other threads run: a megabyte takes a second.
            return list(self._text.encode_batch([text], add_special_tokens=False)[0].ids)
        except (TypeError, UnicodeEncodeError):  # a lone surrogate, which JSON may carry, has no UTF-8 form
            return self.encode(text.encode("utf-8", "replace").decode())

    def pieces(self, text: str) -> list[int | str]:
        """Split trusted text into the ids of added tokens and the texts between them."""
        names = sorted(self._special, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
        return [self._special.get(part, part) for part in parts if part]

    def encode_marked(self, text: str) -> list[int]:
        """Return the ids of trusted text, in which added tokens are control."""
        return self.encode_pieces(self.pieces(text))

    def encode_pieces(self, pieces: Sequence[int | str]) -> list[int]:
        """Return the ids of the pieces that `pieces` returns."""
        return [i for piece in pieces for i in (self.encode(piece) if isinstance(piece, str) else [piece])]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, with special tokens by name."""
        return str(self._text.decode(list(ids), skip_special_tokens=False))

    def to_json(self) -> str:
        """Return the content of a `tokenizer.json` for this tokenizer."""
        return str(self._text.to_str())


_loaded: WeakValueDictionary[tuple[str, int, int], STTokenizer] = WeakValueDictionary()
