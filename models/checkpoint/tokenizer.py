"""Encode text with a checkpoint's tokenizer in such a way that text never becomes a control token."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakValueDictionary

from tokenizers import Tokenizer

from rtcontrol.models.errors import UserError

LONG = 4096  # characters; encoding longer texts releases the GIL


class STTokenizer:
    """A tokenizer whose `encode` never returns the id of an added token; `special_id` returns these ids by name.

    The characters `<|im_end|>`, `<function>` or `<|null|>` in a text are encoded like any other characters. The same
    is true for added tokens that are not marked special, such as `<tool_call>` and `<|fim_prefix|>` of Qwen2.5.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        # Copy, because `_configure` changes settings of the tokenizer.
        self._configure(Tokenizer.from_str(tokenizer.to_str()))

    def _configure(self, tokenizer: Tokenizer) -> None:
        self._text = tokenizer
        tokenizer.encode_special_tokens = True
        tokenizer.no_padding()
        tokenizer.no_truncation()
        added = tokenizer.get_added_tokens_decoder()
        # `encode_special_tokens` applies to special tokens only, so mark all added tokens as special.
        tokenizer.add_special_tokens([t for t in added.values() if not t.special])
        self._special = {str(t.content): i for i, t in added.items()}

    def digest(self) -> str:
        """Return a hash of the tokenizer's settings and vocabulary."""
        return hashlib.sha256(self._text.to_str().encode()).hexdigest()[:16]

    @classmethod
    def load(cls, path: Path) -> STTokenizer:
        """Read a `tokenizer.json`. Callers with the same unchanged file share one object. Raises UserError if the file
        is not a tokenizer."""
        try:
            file = path.stat()
            key = (str(path.resolve()), file.st_mtime_ns, file.st_size)
            tokenizer = _loaded.get(key)
            if tokenizer is None:
                tokenizer = cls.__new__(cls)
                tokenizer._configure(Tokenizer.from_file(str(path)))  # no copy: it takes a second for 150,000 tokens
                _loaded[key] = tokenizer
            return tokenizer
        except Exception as error:  # the tokenizers library raises the class Exception itself
            raise UserError(
                f"{path} is not a tokenizer file ({error}).", "Give --model a complete checkpoint folder."
            ) from error

    @property
    def size(self) -> int:
        """Return the number of tokens, including added tokens."""
        return int(self._text.get_vocab_size(with_added_tokens=True))

    @property
    def specials(self) -> tuple[str, ...]:
        return tuple(self._special)

    def special_id(self, token: str) -> int:
        """Return the id of an added token. Raises KeyError for an unknown name."""
        return self._special[token]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text. Names of control tokens in it are encoded as plain characters."""
        try:
            if len(text) < LONG:
                return list(self._text.encode(text, add_special_tokens=False).ids)
            # Encoding a megabyte takes a second. Unlike `encode`, `encode_batch` releases the GIL during this time.
            return list(self._text.encode_batch([text], add_special_tokens=False)[0].ids)
        except (TypeError, UnicodeEncodeError):  # a lone surrogate, which JSON may contain, has no UTF-8 form
            return self.encode(text.encode("utf-8", "replace").decode())

    def split_added_tokens(self, text: str) -> list[int | str]:
        """Split trusted text at names of added tokens. Return the ids of these tokens and the texts between them."""
        names = sorted(self._special, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
        return [self._special.get(part, part) for part in parts if part]

    def encode_marked(self, text: str) -> list[int]:
        """Return the token ids of trusted text. The names of added tokens in it become these tokens."""
        return self.encode_pieces(self.split_added_tokens(text))

    def encode_pieces(self, pieces: Sequence[int | str]) -> list[int]:
        """Return the token ids of the result of `split_added_tokens`."""
        return [i for piece in pieces for i in (self.encode(piece) if isinstance(piece, str) else [piece])]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids. Special tokens become their names."""
        return str(self._text.decode(list(ids), skip_special_tokens=False))

    def to_json(self) -> str:
        """Return the content of a `tokenizer.json` for this tokenizer."""
        return str(self._text.to_str())


_loaded: WeakValueDictionary[tuple[str, int, int], STTokenizer] = WeakValueDictionary()
