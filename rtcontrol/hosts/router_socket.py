"""ROUTER sockets whose routing ids no peer can predict."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import zmq


def router_socket(context: zmq.Context[Any]) -> zmq.Socket[bytes]:
    """Return a new ROUTER that numbers its peers from a random start.

    libzmq 4.3.5 gives each peer a number that counts up from two values of the C library's rand(), which it never
    seeds. A peer that claims the next number as its own id ends the process by an assertion, so rand() is seeded here.
    """
    # PyDLL keeps the interpreter's lock: no Python thread uses rand() between the two lines.
    ctypes.PyDLL(None).srand(ctypes.c_uint(int.from_bytes(os.urandom(4), "little")))
    return context.socket(zmq.ROUTER)
