"""Pictures as they travel: JPEG and PNG files, of which headers are looked at and no pixel is decoded."""

from __future__ import annotations

import struct
import zlib
from typing import Literal

from rtcontrol_client.wire.errors import Code, WireError

PICTURES = "pictures"  # the capability
PictureFormat = Literal["jpeg", "png"]
MAX_PICTURE_BYTES = 768_000  # as base64 within a message's limit
MAX_SIDE, MAX_PIXELS = 8192, 1 << 24
MAX_PICTURES_HZ = 10.0

PNG, PNG_END = b"\x89PNG\r\n\x1a\n", b"\0\0\0\0IEND\xaeB`\x82"
JPEG = b"\xff\xd8\xff"
# Of a PNG: the bits a sample that each kind of colour may have (PNG 1.2, section 4.1.1).
DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
# Of a JPEG (ITU-T T.81, table B.1): sizes stand in frame headers; browsers show three of their kinds.
FRAMES = {0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}
SHOWN = {0xC0, 0xC1, 0xC2}
TABLES, SCAN, END = 0xC4, 0xDA, b"\xff\xd9"
BARE = {0x01, *range(0xD0, 0xD8)}  # markers without a length
MAX_SEGMENTS = 128  # before the scan: metadata are cut into segments of 64 KiB
BEHIND = 1 << 14  # bytes that may stand behind a file's end
DEPTH_HEADER = 12  # bytes that compressed_depth_image_transport puts before its PNG

FIELD = "image"
SEND_ANOTHER = "Send a whole JPEG or PNG file."


def format_of(data: bytes | memoryview) -> PictureFormat | None:
    """By its first bytes, whatever it is called; None: neither."""
    if data[:8] == PNG:
        return "png"
    return "jpeg" if data[:3] == JPEG else None


def check_picture(form: PictureFormat, data: bytes) -> tuple[int, int]:
    """Width and height that the file tells. Raises WireError (too_large, invalid) for what is too large, no such file,
    cut off, or such that browsers do not show it. Looks at no more than headers and the file's last 16 KiB."""
    if len(data) > MAX_PICTURE_BYTES:
        what = f"A picture of {len(data)} bytes: at most {MAX_PICTURE_BYTES} are taken."
        raise WireError(Code.TOO_LARGE, what, "Send a smaller one, or one of lower quality.", field=FIELD)
    found = format_of(data)
    if found is None and data[DEPTH_HEADER : DEPTH_HEADER + 8] == PNG:
        what = f"The picture has {DEPTH_HEADER} bytes before its PNG: it is of compressedDepth, and no picture file."
        raise WireError(Code.INVALID, what, "Send a picture of a colour camera.", field=FIELD)
    if found is None:
        raise _refused(f"The picture begins with {data[:4].hex() or 'nothing'}: that is neither JPEG nor PNG.")
    if found != form:
        raise WireError(Code.INVALID, f"The picture is a {found} file.", f'Say "{found}".', field=f"{FIELD}.format")
    width, height = _png_size(data) if form == "png" else _jpeg_size(data)
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= MAX_PIXELS):
        what = f"A picture of {width} x {height}: at most {MAX_SIDE} a side and {MAX_PIXELS} pixels are taken."
        raise WireError(Code.INVALID, what, "Send a smaller one.", field=FIELD)
    return width, height


def _png_size(data: bytes) -> tuple[int, int]:
    if len(data) < 33 or data[8:16] != b"\0\0\0\rIHDR":
        raise _refused("The PNG has no header.")
    width, height, depth, colour, packing, filtering, interlace = struct.unpack_from(">IIBBBBB", data, 16)
    (crc,) = struct.unpack_from(">I", data, 29)
    if crc != zlib.crc32(data[12:29]):
        raise _refused("The PNG's header is damaged: its checksum is wrong.")
    if depth not in DEPTHS.get(colour, ()) or packing or filtering or interlace > 1:
        raise _refused("The PNG's header asks for what no PNG has.")
    if not data[-BEHIND:].rstrip(b"\0").endswith(PNG_END):
        raise _refused("The PNG is cut off: its end is missing.")
    return width, height


def _jpeg_size(data: bytes) -> tuple[int, int]:
    at, size, tables = 2, None, False
    for _ in range(MAX_SEGMENTS):
        kind, at = _marker(data, at)
        if kind in BARE:
            continue
        if kind in (0xD8, 0xD9) or at + 2 > len(data):
            break
        (length,) = struct.unpack_from(">H", data, at)
        if kind == SCAN:
            return _before_scan(data, at, size, tables)
        if kind in FRAMES:
            if kind not in SHOWN:
                raise _refused("The JPEG is lossless, hierarchical or arithmetically coded: browsers do not show it.")
            if length < 8 or at + 8 > len(data) or size is not None:
                break
            bits, height, width, parts = struct.unpack_from(">BHHB", data, at + 2)
            if bits != 8 or parts not in (1, 3, 4):
                raise _refused(f"The JPEG has {parts} components of {bits} bits: browsers do not show it.")
            size = width, height
        tables |= kind == TABLES
        if length < 2:
            break
        at += length
    raise _refused("The JPEG is cut off, or damaged, before its picture begins.")


def _marker(data: bytes, at: int) -> tuple[int, int]:
    """The marker that stands here, behind any fill bytes, and where it ends."""
    if data[at : at + 1] != b"\xff":
        raise _refused("The JPEG is cut off, or damaged, before its picture begins.")
    for after in range(at + 1, min(at + 64, len(data))):
        if data[after] != 0xFF:
            return data[after], after + 1
    raise _refused("The JPEG is cut off, or damaged, before its picture begins.")


def _before_scan(data: bytes, at: int, size: tuple[int, int] | None, tables: bool) -> tuple[int, int]:
    if size is None:
        raise _refused("The JPEG has no size.")
    if not tables:
        raise _refused(
            "The JPEG has no Huffman tables, as frames of some cameras' motion JPEG: browsers do not show it."
        )
    # Within a scan these two bytes stand nowhere; behind the end cameras leave what they like.
    if data.rfind(END, max(at, len(data) - BEHIND)) < 0:
        raise _refused("The JPEG is cut off: its end is missing.")
    return size


def _refused(what: str) -> WireError:
    return WireError(Code.INVALID, what, SEND_ANOTHER, field=FIELD)
