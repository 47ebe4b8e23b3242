"""Memory of large models in training: what a step took is the system's again behind it."""

from __future__ import annotations

import ctypes
import sys

M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
BYTES = 2_000_000


def return_blocks() -> bool:
    """From now on glibc gives blocks of 2 MB and more back as soon as they are free; whether it said yes. By itself it
    keeps ever larger ones in its heap, which batches of many sizes cut into pieces."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return bool(ctypes.CDLL("libc.so.6").mallopt(M_MMAP_THRESHOLD, BYTES))
    except (OSError, AttributeError):  # another C library
        return False
