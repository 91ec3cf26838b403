"""Damage to bytes: what transfers, disks and bad writers do, and what somebody who means harm would try.

Every function takes bytes and a source of randomness and returns other bytes; none knows a format.
"""

import struct
from collections.abc import Callable
from random import Random

Mutation = Callable[[bytes, Random], bytes]

_EXTREMES = [
    *(struct.pack("<I", n) for n in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x10000, 0xFFFFFF)),
    *(struct.pack("<Q", n) for n in (2**63 - 1, 2**63, 2**64 - 1, 2**40, 2**31, 2**32)),
    *(struct.pack(">I", n) for n in (0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)),
    b"\xff" * 9 + b"\x01",
    b"\xfe\xff\xff\xff\x0f",
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80" * 12,
]
"""Integers at the edges, fixed-width and as varints."""


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """One to three damages, most of them to a region that is likely to matter: the ends of a file."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        data = random.choice(_MUTATIONS)(data, random)
    return data


def mutate_in_place(data: bytes, random: Random) -> bytes:
    """Damage that leaves the length."""
    return random.choice((_flip_bits, _set_byte, _overwrite_number, _overwrite_number, _swap))(data, random)


def _position(data: bytes, random: Random) -> int:
    """Somewhere: anywhere, near the start, or near the end."""
    last = max(len(data) - 1, 0)
    near = min(last, random.choice((16, 64, 512)))
    match random.randrange(4):
        case 0:
            return random.randint(0, near)
        case 1 | 2:
            return random.randint(last - near, last)
        case _:
            return random.randint(0, last)


def _flip_bits(data: bytes, random: Random) -> bytes:
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 4, 16))):
        if found:
            found[_position(data, random)] ^= 1 << random.randrange(8)
    return bytes(found)


def _set_byte(data: bytes, random: Random) -> bytes:
    found = bytearray(data)
    if found:
        found[_position(data, random)] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
    return bytes(found)


def _overwrite_number(data: bytes, random: Random) -> bytes:
    at = _position(data, random)
    number = random.choice(_EXTREMES)[: len(data) - at]
    return data[:at] + number + data[at + len(number) :]


def _insert(data: bytes, random: Random) -> bytes:
    at = _position(data, random)
    return data[:at] + random.randbytes(random.choice((1, 2, 4, 100))) + data[at:]


def _delete(data: bytes, random: Random) -> bytes:
    at = _position(data, random)
    return data[:at] + data[at + random.choice((1, 2, 4, 100)) :]


def _truncate(data: bytes, random: Random) -> bytes:
    return data[: random.choice((0, 3, len(data) // 2, _position(data, random)))]


def _append(data: bytes, random: Random) -> bytes:
    return data + random.choice((b"\0", b"PAR1", b"ORC", data[-32:], random.randbytes(50)))


def _repeat(data: bytes, random: Random) -> bytes:
    at, length = _position(data, random), random.choice((1, 8, 64))
    return data[: at + length] + data[at : at + length] * random.choice((1, 3)) + data[at + length :]


def _zero(data: bytes, random: Random) -> bytes:
    at = _position(data, random)
    length = min(random.choice((4, 16, 512)), len(data) - at)
    return data[:at] + bytes(length) + data[at + length :]


def _swap(data: bytes, random: Random) -> bytes:
    length = random.choice((1, 4, 16))
    first, second = sorted((_position(data, random), _position(data, random)))
    if second < first + length or second + length > len(data):
        return _flip_bits(data, random)
    a, b = data[first : first + length], data[second : second + length]
    return data[:first] + b + data[first + length : second] + a + data[second + length :]


_MUTATIONS: tuple[Mutation, ...] = (
    _flip_bits,
    _flip_bits,
    _flip_bits,
    _set_byte,
    _set_byte,
    _overwrite_number,
    _overwrite_number,
    _insert,
    _delete,
    _truncate,
    _append,
    _repeat,
    _zero,
    _swap,
)
