"""XXH3 of 64 bits with the seed 0, by which the parts of objects are named where transactions are checked: docs/format/object.md.

The algorithm is that of the xxHash specification. Two programs that hash a key otherwise would not see each other's conflicts.
"""

from __future__ import annotations

import struct

_MASK = (1 << 64) - 1
_PRIME32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_PRIME64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_MIX = (0x165667919E3779F9, 0x9FB21C651E98DF25)
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_STRIPE, _BLOCK_STRIPES = 64, 16


def _word(data: bytes, at: int, size: int = 8) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK


def _folded(one: int, other: int) -> int:
    """Both halves of the product of 128 bits."""
    product = one * other
    return (product ^ product >> 64) & _MASK


def _mixed(data: bytes, at: int, secret: int) -> int:
    return _folded(_word(data, at) ^ _word(_SECRET, secret), _word(data, at + 8) ^ _word(_SECRET, secret + 8))


def _ended(word: int) -> int:
    word ^= word >> 37
    word = word * _MIX[0] & _MASK
    return word ^ word >> 32


def _ended_short(word: int) -> int:
    word ^= word >> 33
    word = word * _PRIME64[1] & _MASK
    word ^= word >> 29
    word = word * _PRIME64[2] & _MASK
    return word ^ word >> 32


def xxh3(data: bytes) -> int:
    """The hash of the bytes."""
    length = len(data)
    if length <= 16:
        return _short(data, length)
    if length > 240:
        return _long(data, length)
    total = length * _PRIME64[0]
    if length <= 128:
        for pair in range((length - 1) // 32 + 1):
            total += _mixed(data, 16 * pair, 32 * pair) + _mixed(data, length - 16 * (pair + 1), 32 * pair + 16)
        return _ended(total & _MASK)
    total = _ended((total + sum(_mixed(data, 16 * step, 16 * step) for step in range(8))) & _MASK)
    total += sum(_mixed(data, 16 * step, 16 * (step - 8) + 3) for step in range(8, length // 16))
    return _ended((total + _mixed(data, length - 16, 136 - 17)) & _MASK)


def _short(data: bytes, length: int) -> int:
    if length > 8:
        low = _word(data, 0) ^ _word(_SECRET, 24) ^ _word(_SECRET, 32)
        high = _word(data, length - 8) ^ _word(_SECRET, 40) ^ _word(_SECRET, 48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _ended((length + swapped + high + _folded(low, high)) & _MASK)
    if length > 3:
        word = _word(data, length - 4, 4) | _word(data, 0, 4) << 32
        word ^= _word(_SECRET, 8) ^ _word(_SECRET, 16)
        word ^= _rotated(word, 49) ^ _rotated(word, 24)
        word = word * _MIX[1] & _MASK
        word ^= (word >> 35) + length
        word = word * _MIX[1] & _MASK
        return word ^ word >> 28
    if length > 0:
        word = data[-1] | length << 8 | data[0] << 16 | data[length >> 1] << 24
        return _ended_short(word ^ _word(_SECRET, 0, 4) ^ _word(_SECRET, 4, 4))
    return _ended_short(_word(_SECRET, 56) ^ _word(_SECRET, 64))


def _accumulated(lanes: list[int], data: bytes, at: int, secret: int) -> None:
    words = struct.unpack_from("<8Q", data, at)
    for lane, (word, keyed) in enumerate(zip(words, struct.unpack_from("<8Q", _SECRET, secret), strict=True)):
        keyed ^= word
        lanes[lane ^ 1] = (lanes[lane ^ 1] + word) & _MASK
        lanes[lane] = (lanes[lane] + (keyed & 0xFFFFFFFF) * (keyed >> 32)) & _MASK


def _long(data: bytes, length: int) -> int:
    lanes = [_PRIME32[2], *_PRIME64[:4], _PRIME32[1], _PRIME64[4], _PRIME32[0]]
    for stripe in range((length - 1) // _STRIPE):
        nth = stripe % _BLOCK_STRIPES
        _accumulated(lanes, data, _STRIPE * stripe, 8 * nth)
        if nth == _BLOCK_STRIPES - 1:
            scramble = struct.unpack_from("<8Q", _SECRET, len(_SECRET) - _STRIPE)
            lanes = [(lane ^ lane >> 47 ^ word) * _PRIME32[0] & _MASK for lane, word in zip(lanes, scramble, strict=True)]
    _accumulated(lanes, data, length - _STRIPE, len(_SECRET) - _STRIPE - 7)
    keyed = [lane ^ word for lane, word in zip(lanes, struct.unpack_from("<8Q", _SECRET, 11), strict=True)]
    total = length * _PRIME64[0] + sum(map(_folded, keyed[::2], keyed[1::2]))
    return _ended(total & _MASK)


ALL = _MASK


def part(name: bytes) -> int:
    """The part of an object that has this name, as MessagePack. `ALL` stands for all of the object."""
    return min(xxh3(name), ALL - 1)
