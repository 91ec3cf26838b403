"""Run-length encodings of ORC: the examples of the specification, and streams that end early or lie."""

import contextlib
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

from nevermore.scan_core.files.orc_streams import StreamPart


def part(data: bytes) -> StreamPart:
    return StreamPart(iter([(len(data), data)]))


def decode_integers(data: bytes, count: int, *, version: int, signed: bool) -> np.ndarray:
    return part(data).integers(count, version, signed=signed)


def decode_booleans(data: bytes, count: int) -> np.ndarray:
    return part(data).booleans(count)


PRIMES = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
PATCHED = [2030, 2000, 2020, 1_000_000, *range(2040, 2200, 10)]
PATCHED_BYTES = "8e132b2107d01e00147028323c46505a646e78828c96a0aab4befce8"


@pytest.mark.parametrize(
    ("data", "version", "signed", "expected"),
    [
        ("610007", 1, False, [7] * 100),
        ("61ff64", 1, False, list(range(100, 0, -1))),
        ("fb020306070b", 1, False, [2, 3, 6, 7, 11]),
        ("fe0102", 1, True, [-1, 1]),
        ("0a2710", 2, False, [10_000] * 5),
        ("0a4e1f", 2, True, [-10_000] * 5),
        ("5e035ca1ab1edeadbeef", 2, False, [23713, 43806, 57005, 48879]),
        (PATCHED_BYTES, 2, False, PATCHED),
        (PATCHED_BYTES, 2, True, PATCHED),
        ("c609020222424246", 2, False, PRIMES),
        ("c004e80713", 2, True, [500, 490, 480, 470, 460]),
        ("38fffffffffffffff6", 2, False, [-10] * 3),  # Arrow writes what is negative as unsigned
        ("6100f6ffffffffffffffff01", 1, False, [-10] * 100),
        ("fef6ffffffffffffffff0105", 1, False, [-10, 5]),
        ("c002f6ffffffffffffffff0100", 2, False, [-10] * 3),
    ],
)
def test_examples_of_every_encoding(data: str, version: int, signed: bool, expected: list[int]) -> None:  # noqa: FBT001
    encoded = bytes.fromhex(data)
    assert decode_integers(encoded, len(expected), version=version, signed=signed).tolist() == expected
    again = decode_integers(encoded * 2, 2 * len(expected), version=version, signed=signed)
    assert again.tolist() == expected * 2
    assert decode_integers(encoded, 2, version=version, signed=signed).tolist() == expected[:2]


def test_booleans_come_most_significant_bit_first() -> None:
    assert decode_booleans(b"\xff\x80", 8).tolist() == [True] + [False] * 7
    assert decode_booleans(b"\x61\x00", 800).tolist() == [False] * 800
    assert decode_booleans(b"\xfe\x44\x45\x00\xff", 19).nonzero()[0].tolist() == [1, 5, 9, 13, 15, 16, 17, 18]


@pytest.mark.parametrize("data", ["", "5e035c", PATCHED_BYTES[:30], "c60902", "0a27", "61", "ff" + "80" * 11])
def test_streams_that_end_early_are_refused(data: str) -> None:
    with pytest.raises((ValueError, LookupError)):
        decode_integers(bytes.fromhex(data), 1000, version=1 if data.startswith(("6", "ff")) else 2, signed=True)
    with pytest.raises(LookupError):
        decode_booleans(b"\xff", 8)


@pytest.mark.parametrize(("data", "version"), [("ff07", 1), ("ff07" * 50_000, 1), ("0207", 2)])
def test_streams_of_short_runs_take_the_memory_of_their_values(data: str, version: int) -> None:
    encoded = bytes.fromhex(data)
    tracemalloc.start()
    try:
        with contextlib.suppress(ValueError, LookupError):
            decode_integers(encoded, 2**40, version=version, signed=False)
        assert tracemalloc.get_traced_memory()[1] < 300 * 8 * len(encoded) + 100_000
        tracemalloc.reset_peak()
        count = 50_000 if len(encoded) > 50_000 else 1
        assert decode_integers(encoded, count, version=version, signed=False).tolist() == [7] * count
        assert tracemalloc.get_traced_memory()[1] < 100 * count + 100_000
    finally:
        tracemalloc.stop()


def test_random_bytes_are_read_or_refused_but_never_crash() -> None:
    random = np.random.default_rng(1)
    for size, _ in pairwise(range(1, 400)):
        data = random.bytes(size)
        for version in (1, 2):
            try:
                assert len(decode_integers(data, size, version=version, signed=True)) == size
            except (ValueError, LookupError):
                continue
