"""MessagePack, as the arguments and results of objects are stored and sent: the shortest form of each value, maps in their own order.

What a peer has sent is never believed: a length beyond the bytes that are there, values too deep inside each other and bytes that are
left over raise `BadFrame`. What is packed is held to the same depth, since nobody could read it.
"""

from __future__ import annotations

import struct
from typing import Any

from ithaca_wire import BadFrame

# Values inside each other, the innermost too. Nodes and the shell take no deeper ones, and what has one of them stops for good.
DEPTH_MAX = 128

_FLOATS = {0xCA: ">f", 0xCB: ">d"}
_UNSIGNED = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_SIGNED = {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_TEXT = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_LISTS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}


def pack(value: Any, around: int = 0) -> bytes:
    """The bytes of None, bool, int of 64 bits, float, str, bytes, or a list, tuple or dict of these. Others raise `TypeError` or
    `OverflowError`, and `ValueError` where they are more than `DEPTH_MAX` deep inside each other, and `around` more."""
    return _pack(value, DEPTH_MAX + around)


def _pack(value: Any, depth: int) -> bytes:
    if not depth:
        raise ValueError(f"values are more than {DEPTH_MAX} deep inside each other")
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return _pack_int(value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        text = value.encode()
        return _head(len(text), 0xA0, 32, _TEXT) + text
    if isinstance(value, (bytes, bytearray)):
        return _head(len(value), 0, 0, _BYTES) + bytes(value)
    if isinstance(value, (list, tuple)):
        return _head(len(value), 0x90, 16, _LISTS) + b"".join(_pack(item, depth - 1) for item in value)
    if isinstance(value, dict):
        items = (_pack(key, depth - 1) + _pack(item, depth - 1) for key, item in value.items())
        return _head(len(value), 0x80, 16, _MAPS) + b"".join(items)
    raise TypeError(f"{type(value).__name__} has no MessagePack here")


def _pack_int(value: int) -> bytes:
    if -32 <= value < 128:
        return (value & 0xFF).to_bytes(1)
    for marker, size in (_UNSIGNED if value >= 0 else _SIGNED).items():
        try:
            return bytes([marker]) + value.to_bytes(size, "big", signed=value < 0)
        except OverflowError:
            continue
    raise OverflowError(f"{value} does not fit into 64 bits")


def _head(count: int, fixed: int, below: int, sizes: dict[int, int]) -> bytes:
    """The length of what follows, in the marker itself if it is `below`."""
    if count < below:
        return bytes([fixed | count])
    for marker, size in sizes.items():
        if count < 1 << 8 * size:
            return bytes([marker]) + count.to_bytes(size)
    raise OverflowError(f"{count} are too many")


def unpack(data: bytes, around: int = 0) -> Any:
    """The value that is the whole of `data`, at most `DEPTH_MAX` deep, and `around` more."""
    value, end = _unpack(data, 0, DEPTH_MAX + around)
    if end != len(data):
        raise BadFrame(f"{len(data) - end} bytes are left over")
    return value


def _take(data: bytes, at: int, count: int) -> tuple[bytes, int]:
    if count > len(data) - at:
        raise BadFrame(f"{count} bytes are wanted, {len(data) - at} are left")
    return data[at : at + count], at + count


def _number(data: bytes, at: int, size: int, signed: bool = False) -> tuple[int, int]:
    taken, at = _take(data, at, size)
    return int.from_bytes(taken, signed=signed), at


def _unpack(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if not depth:
        raise BadFrame("values are too deep inside each other")
    marker, at = _number(data, at, 1)
    if marker in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[marker], at
    if marker < 0x80 or marker >= 0xE0:
        return marker if marker < 0x80 else marker - 0x100, at
    if marker < 0x90:
        return _unpack_map(data, at, marker & 0x0F, depth)
    if marker < 0xA0:
        return _unpack_list(data, at, marker & 0x0F, depth)
    if marker < 0xC0:
        return _unpack_text(data, at, marker & 0x1F)
    if marker in _FLOATS:
        taken, at = _take(data, at, struct.calcsize(_FLOATS[marker]))
        return struct.unpack(_FLOATS[marker], taken)[0], at
    if marker in _UNSIGNED:
        return _number(data, at, _UNSIGNED[marker])
    if marker in _SIGNED:
        return _number(data, at, _SIGNED[marker], signed=True)
    for sizes, then in ((_BYTES, _take), (_TEXT, _unpack_text)):
        if marker in sizes:
            count, at = _number(data, at, sizes[marker])
            return then(data, at, count)
    if marker in _LISTS:
        count, at = _number(data, at, _LISTS[marker])
        return _unpack_list(data, at, count, depth)
    if marker in _MAPS:
        count, at = _number(data, at, _MAPS[marker])
        return _unpack_map(data, at, count, depth)
    raise BadFrame(f"a value that begins with {marker:#x}")


def _unpack_text(data: bytes, at: int, count: int) -> tuple[str, int]:
    taken, at = _take(data, at, count)
    try:
        return taken.decode(), at
    except UnicodeDecodeError as error:
        raise BadFrame("no UTF-8") from error


def _unpack_list(data: bytes, at: int, count: int, depth: int) -> tuple[list[Any], int]:
    # Each item takes a byte, so a count that is a lie ends where the bytes do.
    items = []
    for _ in range(count):
        item, at = _unpack(data, at, depth - 1)
        items.append(item)
    return items, at


def _unpack_map(data: bytes, at: int, count: int, depth: int) -> tuple[dict[Any, Any], int]:
    found = {}
    for _ in range(count):
        key, at = _unpack(data, at, depth - 1)
        value, at = _unpack(data, at, depth - 1)
        found[hashable(key)] = value
    return found, at


def hashable(key: Any) -> Any:
    """The key as a dict can have it: lists as tuples, dicts as tuples of pairs."""
    if isinstance(key, dict):
        return tuple((hashable(name), hashable(value)) for name, value in key.items())
    return tuple(map(hashable, key)) if isinstance(key, list) else key
