"""Check the pictures in messages (JPEG and PNG files) by their headers, without decoding the pixels."""

from __future__ import annotations

import struct
from typing import Literal

from rtcontrol_client.wire.errors import Code, WireError

PICTURES = "pictures"  # name of the capability
PictureFormat = Literal["jpeg", "png"]
MAX_PICTURE_BYTES = 768_000  # the base64 text of a picture of this size still fits into a message
MAX_SIDE, MAX_PIXELS = 8192, 1 << 24
MAX_PICTURES_HZ = 10.0

PNG, PNG_END = b"\x89PNG\r\n\x1a\n", b"\0\0\0\0IEND\xaeB`\x82"
JPEG = b"\xff\xd8\xff"
# Markers of JPEG frame headers, which contain the size (ITU-T T.81, table B.1).
FRAME_MARKERS = {0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}
SCAN_MARKER, END_MARKER = 0xDA, b"\xff\xd9"
MARKERS_WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD8)}
MAX_SEGMENTS = 128  # maximum number of segments before the scan (metadata is split into segments of 64 KiB)
MAX_TRAILING_BYTES = 1 << 14  # maximum number of bytes after the end of the picture in the file

FIELD = "image"


def detect_format(data: bytes | memoryview) -> PictureFormat | None:
    """Detect the format of a file by its first bytes; return None if the file is neither JPEG nor PNG."""
    if data[:8] == PNG:
        return "png"
    return "jpeg" if data[:3] == JPEG else None


def check_picture(form: PictureFormat, data: bytes) -> tuple[int, int]:
    """Return width and height from the file's headers. Raises WireError (too_large, invalid) for a file that is too
    large, in another format, or truncated. Only the headers and the last 16 KiB of the file are read."""
    if len(data) > MAX_PICTURE_BYTES:
        problem = f"The picture has {len(data)} bytes; at most {MAX_PICTURE_BYTES} are allowed."
        raise WireError(Code.TOO_LARGE, problem, "Send a smaller picture, or reduce its quality.", field=FIELD)
    actual = detect_format(data)
    if actual is None:
        raise _invalid(f"The picture starts with {data[:4].hex() or 'no bytes'}, so it is neither JPEG nor PNG.")
    if actual != form:
        problem, hint = f"The picture is a {actual} file, but format is {form}.", f'Set format to "{actual}".'
        raise WireError(Code.INVALID, problem, hint, field=f"{FIELD}.format")
    size = _png_size(data) if form == "png" else _jpeg_size(data)
    if size is None:
        raise _invalid(f"The {form.upper()} file is truncated or damaged.")
    width, height = size
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= MAX_PIXELS):
        raise _invalid(f"The picture is {width} x {height}; the limits are {MAX_SIDE} a side and {MAX_PIXELS} pixels.")
    return width, height


def _png_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, or None if the header or the end is missing."""
    if data[8:16] != b"\0\0\0\rIHDR" or not data[-MAX_TRAILING_BYTES:].rstrip(b"\0").endswith(PNG_END):
        return None
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a JPEG, or None if the size or the end is missing."""
    at, size = 2, None
    for _ in range(MAX_SEGMENTS):
        if at + 9 > len(data) or data[at] != 0xFF:
            return None
        marker, length, height, width = struct.unpack_from(">BHxHH", data, at + 1)
        if marker == 0xFF or marker in MARKERS_WITHOUT_LENGTH:  # 0xFF is a fill byte
            at += 1 if marker == 0xFF else 2
            continue
        if marker in FRAME_MARKERS:
            size = (width, height) if size is None else (0, 0)  # a second frame makes the picture invalid
        if marker == SCAN_MARKER:
            # The end marker cannot occur inside a scan. Cameras may append other bytes after the end.
            return size if data.rfind(END_MARKER, max(at, len(data) - MAX_TRAILING_BYTES)) >= 0 else None
        at += 2 + length
    return None


def _invalid(problem: str) -> WireError:
    return WireError(Code.INVALID, problem, "Send a whole JPEG or PNG file within these limits.", field=FIELD)
