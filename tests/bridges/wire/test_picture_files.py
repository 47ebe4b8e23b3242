"""Which files are accepted as pictures, judged by their headers alone."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rtcontrol.envs.pictures import encode_png
from rtcontrol_client.wire import Code, WireError, decode_json, decode_msgpack, encode_json, encode_msgpack
from rtcontrol_client.wire.messages import Picture, PictureFile
from rtcontrol_client.wire.pictures import (
    MAX_PICTURE_BYTES,
    MAX_SEGMENTS,
    MAX_TRAILING_BYTES,
    check_picture,
    detect_format,
)


def jpeg(width: int = 64, height: int = 48, mode: str = "RGB", **options: Any) -> bytes:
    """Return a JPEG file like those of a camera driver."""
    file = io.BytesIO()
    pixels = np.random.default_rng(1).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def enlarged(data: bytes, size: int) -> bytes:
    """Return the JPEG enlarged to `size` bytes by metadata."""
    more, made = size - len(data), data[:2]
    while more > 0:
        length = more if more <= 65_537 else min(65_537, more - 4)
        made += b"\xff\xef" + (length - 2).to_bytes(2, "big") + bytes(length - 4)
        more -= length
    return made + data[2:]


def saved(mode: str) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (5, 4)).save(file, "PNG")
    return file.getvalue()


def why_not(data: bytes) -> str:
    with pytest.raises(WireError) as caught:
        check_picture(detect_format(data) or "jpeg", data)
    assert caught.value.field == "image" and caught.value.remedy
    return caught.value.message


JPEGS = {
    "baseline": jpeg(),
    "progressive": jpeg(progressive=True),
    "grey": jpeg(mode="L"),
    "four inks": jpeg(mode="CMYK"),
    "with a profile of 200 kB": jpeg(icc_profile=bytes(200_000)),
    "with a thumbnail before it": jpeg(exif=b"Exif\0\0" + jpeg(8, 8)),
    # Cameras pad a frame (anima-research/agent-framework#143: each of a Raspberry Pi; openmv/openmv#822: thousands of
    # zeros), or leave a block of their own there (rroller/dahua#658).
    "zeros behind it": jpeg() + bytes(3000),
    "a camera's block behind it": jpeg() + b"dhav\x59\x19\x01\x00",
    # Fill bytes before markers (image-rs/jpeg-decoder#147).
    "fill bytes": jpeg()[:2] + b"\xff\xff\xff" + jpeg()[2:-2] + b"\xff\xff\xff\xd9",
}


@pytest.mark.parametrize("name", JPEGS)
def test_jpeg_of_any_camera_is_accepted_with_size(name: str) -> None:
    assert detect_format(JPEGS[name]) == "jpeg" and check_picture("jpeg", JPEGS[name]) == (64, 48)


def test_png_is_accepted_with_size() -> None:
    assert check_picture("png", saved("RGB")) == (5, 4)


@pytest.mark.parametrize("data", [jpeg(), jpeg(progressive=True), encode_png(np.zeros((40, 50, 3), np.uint8))])
def test_picture_cut_off_anywhere_is_refused(data: bytes) -> None:
    for length in range(len(data) - 1):
        assert why_not(data[:length])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "neither JPEG nor PNG"),
        # ros4hri/hri_body_detect#2: what compressed_depth_image_transport sends is no PNG file.
        (struct.pack("<iff", 0, 1.0, 2.0) + saved("I;16"), "neither JPEG nor PNG"),
        (JPEGS["with a thumbnail before it"][:-40], "truncated"),
    ],
    ids=["nothing", "depth", "thumbnail"],
)
def test_file_in_other_format_is_refused_with_reason(data: bytes, why: str) -> None:
    assert why in why_not(data)


@pytest.mark.parametrize(("width", "height"), [(0, 5), (8193, 1), (1, 8193), (5000, 5000)])
def test_picture_of_too_many_or_no_pixels_is_refused(width: int, height: int) -> None:
    file = saved("RGB")
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    assert f"{width} x {height}" in why_not(file[:12] + body + struct.pack(">I", zlib.crc32(body)) + file[33:])


def test_too_large_or_mislabelled_picture_is_refused() -> None:
    largest = enlarged(jpeg(), MAX_PICTURE_BYTES)
    assert check_picture("jpeg", largest) == (64, 48)
    hint = 'Set format to "jpeg".'
    for form, data, remedy in (("jpeg", enlarged(jpeg(), MAX_PICTURE_BYTES + 1), ""), ("png", jpeg(), hint)):
        with pytest.raises(WireError) as caught:
            check_picture(form, data)  # type: ignore[arg-type]
        assert (caught.value.code == Code.TOO_LARGE) if not remedy else (caught.value.remedy == remedy)
    reported = Picture(session="t" * 16, t_ns=1, image=PictureFile(format="jpeg", data=largest))
    assert decode_json(encode_json(reported)) == reported == decode_msgpack(encode_msgpack(reported))


def test_only_few_bytes_may_follow_end_of_picture() -> None:
    for data in (jpeg(), saved("RGB")):
        assert check_picture(detect_format(data) or "png", data + bytes(MAX_TRAILING_BYTES // 2))
        assert "truncated" in why_not(data + bytes(MAX_TRAILING_BYTES))


def test_file_of_empty_segments_is_refused_quickly() -> None:
    begin = b"\xff\xd8"
    segment = b"\xff\xe0\x00\x02"
    assert why_not(begin + segment * (MAX_PICTURE_BYTES // 4 - 1))
    body = jpeg()[2:]
    assert check_picture("jpeg", begin + segment * (MAX_SEGMENTS - 16) + body)
    assert why_not(begin + segment * MAX_SEGMENTS + body)


@given(st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8\xff", jpeg()[:300], saved("RGB")[:40]]))
def test_arbitrary_bytes_raise_only_refusals(data: bytes, begin: bytes) -> None:
    for form in ("jpeg", "png"):
        try:
            check_picture(form, begin + data)  # type: ignore[arg-type]
        except WireError as error:
            assert error.message and error.remedy
