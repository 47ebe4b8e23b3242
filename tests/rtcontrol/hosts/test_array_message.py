"""Messages of policy servers: what openpi's client packs is read, and what nobody may pack is refused."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.hosts import array_message
from rtcontrol.hosts.array_message import MalformedMessage, pack_message, unpack_message

# What openpi-client 0.1.2 packs of {"a": arange(6, "f4").reshape(2, 3), "g": float64(2), "i": int64(3)}.
OPENPI = bytes.fromhex(
    "83a16184c40b5f5f6e6461727261795f5fc3c40464617461c418000000000000803f0000004000004040000080400000a040c4056474"
    "797065a33c6634c4057368617065920203a167cb4000000000000000a16983c40d5f5f6e7067656e657269635f5fc3c4046461746103"
    "c4056474797065a33c6938"
)


def array(**changed: Any) -> bytes:
    fields = {"data": b"\0" * 24, "dtype": "<f4", "shape": [2, 3]} | changed
    return msgpack.packb({"a": {b"__ndarray__": True, **{k.encode(): v for k, v in fields.items()}}})


def test_what_openpis_client_packs_is_read_and_packed_to_the_same_bytes() -> None:
    found = unpack_message(OPENPI)
    assert found["a"].dtype == np.float32 and found["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert type(found["g"]) is float and type(found["i"]) is np.int64 and (found["g"], found["i"]) == (2, 3)
    assert pack_message(found) == OPENPI


@pytest.mark.parametrize(
    "value", [np.zeros((0, 3), "f2"), np.array([True, False]), np.array(["on", "off"]), np.uint8(7)]
)
def test_arrays_of_numbers_truth_values_and_text_come_back_as_they_were(value: Any) -> None:
    found = unpack_message(pack_message({"value": value}))["value"]
    assert found.dtype == value.dtype and found.shape == value.shape and np.array_equal(found, value)


MALFORMED = {
    "no msgpack": b"\xc1",
    "two values": OPENPI + b"\x01",
    "fewer bytes than the shape says": array(data=b"\0" * 23),
    "a shape beyond all memory": array(shape=[1 << 40, 1 << 40]),
    "objects": array(dtype="|O", shape=[3]),
    "a dtype with a shape": array(dtype="(2,3)f4", shape=[1]),
    "a huge list": msgpack.packb([0] * 20_000),
    "a dtype of a book's length": array(dtype=",".join(["f4"] * 100_000), shape=[0], data=b""),
    "an extension": msgpack.packb(msgpack.ExtType(4, b"x")),
    "a key that is a list": b"\x81\x90\x01",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_no_such_message_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        unpack_message(data)


def test_a_message_beyond_the_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_message, "MOST_BYTES", 64)
    with pytest.raises(MalformedMessage, match="64 is the most"):
        unpack_message(OPENPI)


def listed(lists: int, one: bytes) -> bytes:
    """So many lists of 16,384 items."""
    inner = b"\xdc\x40\x00" + one * (1 << 14)
    return b"\x81\xa7actions\xdc" + lists.to_bytes(2) + inner * lists


# msgpack/msgpack-python#97 and kriszyp/msgpackr#200: few bytes of lists hold the reader for seconds, or all memory.
CROWDED = {
    "empty lists": listed(1000, b"\x90"),
    "a list that says it is long": b"\xdd\xff\x00\x00\x00",
    "a map that says it is long": b"\xdf\x00\x00\x0f\xff" + b"\xc0" * 10_000,
    "nested": b"\x91" * 5000 + b"\xc0",
}


@pytest.mark.parametrize("data", CROWDED.values(), ids=CROWDED.keys())
def test_a_message_of_too_many_items_is_refused_before_anything_is_made_of_it(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bytes] = []
    monkeypatch.setattr(array_message.msgpack, "unpackb", lambda given, **more: made.append(given))
    with pytest.raises(MalformedMessage, match="more than 4096 items"):
        unpack_message(data)
    assert not made


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    with contextlib.suppress(MalformedMessage):
        unpack_message(data)


def test_openpis_own_code_reads_ours() -> None:
    python = os.environ.get("RTCONTROL_OPENPI")
    if not python:
        pytest.skip("RTCONTROL_OPENPI names no interpreter that has openpi-client")
    sent = pack_message({"a": np.full((2, 2), math.pi), "b": np.float32(0.5), "c": "on", "d": np.array([], "i2")})
    code = (
        "import sys\nfrom openpi_client.msgpack_numpy import packb, unpackb\nfound = unpackb(sys.stdin.buffer.read())\n"
        "assert found['a'].shape == (2, 2) and found['d'].dtype.str == '<i2'\nsys.stdout.buffer.write(packb(found))"
    )
    done = subprocess.run([python, "-c", code], input=sent, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == sent
