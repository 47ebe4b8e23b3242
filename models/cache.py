"""What was made of long texts lately, so that it is not made again."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class BoundedCache(Generic[T]):
    """Keeps what was asked for last: so many values, of so many bytes together with their texts. For any thread; what
    is larger than all may be is not kept."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes, self._left = most, most_bytes, most_bytes
        self._kept: OrderedDict[bytes, tuple[T, int]] = OrderedDict()  # by their texts' digests
        self._lock = threading.Lock()

    def of(self, text: bytes) -> T | None:
        key = hashlib.sha256(text).digest()
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def keep(self, text: bytes, value: T, value_bytes: int = 0) -> None:
        size = len(text) + value_bytes
        if size > self._most_bytes:
            return
        key = hashlib.sha256(text).digest()
        with self._lock:
            self._left += self._kept.pop(key, (value, 0))[1]
            self._kept[key] = value, size
            self._left -= size
            while len(self._kept) > self._most or self._left < 0:
                self._left += self._kept.popitem(last=False)[1][1]
