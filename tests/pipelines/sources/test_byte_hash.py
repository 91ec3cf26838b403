"""XXH64 against its published values, however the bytes are cut."""

import random

import pytest

from pipelines.sources.byte_hash import ByteHash


def hashed(*blocks: bytes) -> str:
    result = ByteHash()
    for block in blocks:
        result.update(block)
    return result.hexdigest()


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", "ef46db3751d8e999"),
        (b"a", "d24ec4f1a98c6e5b"),
        (b"abc", "44bc2cf5ad770999"),
        (b"Nobody inspects the spammish repetition", "fbcea83c8a378bf1"),
    ],
)
def test_published_values_are_reached(data: bytes, wanted: str) -> None:
    assert hashed(data) == wanted


def test_cuts_change_nothing_and_any_bit_does() -> None:
    draw = random.Random(3)
    data = draw.randbytes(1000)
    whole = hashed(data)
    for _ in range(50):
        borders = sorted(draw.randrange(1001) for _ in range(3))
        parts = [data[a:b] for a, b in zip([0, *borders], [*borders, 1000], strict=True)]
        assert hashed(*parts) == whole
    for place in range(0, 1000, 37):
        assert hashed(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]) != whole
