"""Check pictures in messages: JPEG and PNG files, whose headers are read and whose pixels are not decoded."""

from __future__ import annotations

import struct
from typing import Literal

from rtcontrol_client.wire.errors import Code, WireError

PICTURES = "pictures"  # the name of the capability
PictureFormat = Literal["jpeg", "png"]
MAX_PICTURE_BYTES = 768_000  # as base64 this fits the limit of a message
MAX_SIDE, MAX_PIXELS = 8192, 1 << 24
MAX_PICTURES_HZ = 10.0

PNG, PNG_END = b"\x89PNG\r\n\x1a\n", b"\0\0\0\0IEND\xaeB`\x82"
JPEG = b"\xff\xd8\xff"
# Markers of JPEG frame headers, which contain the size (ITU-T T.81, table B.1).
FRAMES = {0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}
SCAN, END = 0xDA, b"\xff\xd9"
BARE = {0x01, *range(0xD0, 0xD8)}  # markers without a length
MAX_SEGMENTS = 128  # before the scan: metadata are split into segments of 64 KiB
BEHIND = 1 << 14  # bytes that may follow a file's end

FIELD = "image"


def format_of(data: bytes | memoryview) -> PictureFormat | None:
    """Return the format of a file by the first bytes, or None if it is neither JPEG nor PNG."""
    if data[:8] == PNG:
        return "png"
    return "jpeg" if data[:3] == JPEG else None


def check_picture(form: PictureFormat, data: bytes) -> tuple[int, int]:
    """Return width and height from the file's headers. Raises WireError (too_large, invalid) for a file that is too
    large, in another format, or cut off. Reads only the headers and the file's last 16 KiB."""
    if len(data) > MAX_PICTURE_BYTES:
        what = f"The picture has {len(data)} bytes; at most {MAX_PICTURE_BYTES} are accepted."
        raise WireError(Code.TOO_LARGE, what, "Send a smaller one, or one of lower quality.", field=FIELD)
    actual = format_of(data)
    if actual is None:
        raise _refused(f"The picture starts with {data[:4].hex() or 'nothing'}, so it is neither JPEG nor PNG.")
    if actual != form:
        raise WireError(Code.INVALID, f"The picture is a {actual} file.", f'Say "{actual}".', field=f"{FIELD}.format")
    size = _png_size(data) if form == "png" else _jpeg_size(data)
    if size is None:
        raise _refused(f"The {form.upper()} is cut off, or damaged.")
    width, height = size
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= MAX_PIXELS):
        raise _refused(f"The picture is {width} x {height}; at most {MAX_SIDE} a side and {MAX_PIXELS} pixels fit.")
    return width, height


def _png_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, or None if the header or the end is missing."""
    if data[8:16] != b"\0\0\0\rIHDR" or not data[-BEHIND:].rstrip(b"\0").endswith(PNG_END):
        return None
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a JPEG, or None if no size comes before the scan, or the end is missing."""
    at, size = 2, None
    for _ in range(MAX_SEGMENTS):
        if at + 9 > len(data) or data[at] != 0xFF:
            return None
        kind, length, height, width = struct.unpack_from(">BHxHH", data, at + 1)
        if kind == 0xFF or kind in BARE:  # a fill byte, or a marker without a segment
            at += 1 if kind == 0xFF else 2
            continue
        if kind in FRAMES:
            size = (width, height) if size is None else (0, 0)  # a second frame is refused
        if kind == SCAN:
            # These two bytes do not occur within a scan; after the end, cameras may leave any bytes.
            return size if data.rfind(END, max(at, len(data) - BEHIND)) >= 0 else None
        at += 2 + length
    return None


def _refused(what: str) -> WireError:
    return WireError(Code.INVALID, what, "Send a whole JPEG or PNG file, or a smaller one.", field=FIELD)
