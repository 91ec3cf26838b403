"""JSON of MySQL's binary log: the text that the server writes, and one error for what is none."""

import json
import struct

import numpy as np
import pytest

from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats import mysql_kernels as rows
from nevermore.pipelines.formats.mysql_values import MysqlColumn, json_text, texts

Random = np.random.Generator


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (1.5, "1.5"), (-100.0, "-100.0"), (1e14, "100000000000000.0"), (1e15, "1e15"),
        (123456789012345.6, "123456789012345.6"), (1.25e-14, "0.0000000000000125"), (1e-15, "0.000000000000001"),
        (1e-16, "1e-16"), (-2.5e22, "-2.5e22"), (5e-324, "5e-324"), (1.7976931348623157e308, "1.7976931348623157e308"),
    ],
)  # fmt: skip
def test_doubles_have_the_text_of_the_server(number: float, text: str) -> None:
    assert json_text(b"\x0b" + struct.pack("<d", number)).decode() == text


def test_damaged_values_are_refused_with_one_error() -> None:
    random = np.random.default_rng(7)
    column = MysqlColumn("j", "text", rows.TREE, 4)
    refused = 0
    for _ in range(1500):
        value = bytearray(stored_tree(random, int(random.integers(0, 5))))
        for _ in range(random.integers(0, 3)):
            value[random.integers(0, len(value))] = random.choice([0, 1, 2, 3, 255, random.integers(0, 256)])
        data = np.frombuffer(bytes(value[: len(value) - int(random.random() < 0.1)]), np.uint8)
        place = np.zeros(1, np.int32), np.array([len(data)], np.int32)
        try:
            text = json_text(data.tobytes())
        except (ValueError, IndexError, struct.error):
            refused += 1
            with pytest.raises(SourceError, match="a value of j in the binary log is not JSON as MySQL stores it"):
                texts(column, data, *place)
        else:
            json.loads(text.decode("utf-8", "replace"))
            assert texts(column, data, *place).to_pylist() == [text]
    assert 0 < refused < 1500


def test_offsets_that_meet_do_not_grow_without_end() -> None:
    """Each of 60 arrays has the next one twice as its member."""
    value = b"\x0c\x01a"
    array = b"".join(struct.pack("<HH", 2, 65_000 - 10 * n) + (b"\x02" + struct.pack("<H", 10)) * 2 for n in range(60))
    with pytest.raises(ValueError, match="members"):
        json_text(b"\x02" + array + value + bytes(65_000))


def stored_tree(random: Random, depth: int) -> bytes:
    """A JSON value as the binary log of MySQL stores it, with its type in front."""
    kind = int(random.choice([0, 2, 1, 3, 4, 5, 8, 10, 11, 12, 15] if depth else [4, 5, 6, 7, 9, 11, 12, 15]))
    if kind == 4:
        return bytes([4, random.integers(0, 4)])
    if 5 <= kind <= 11:
        return bytes([kind]) + random.bytes({5: 2, 6: 2, 7: 4, 8: 4}.get(kind, 8))
    if kind == 12:
        text = random.bytes(random.integers(0, 200))
        return (
            bytes([12])
            + (bytes([len(text)]) if len(text) < 128 else bytes([len(text) & 127 | 128, len(text) >> 7]))
            + text
        )
    if kind == 15:
        of = int(random.choice([246, 7, 10, 11, 12, 252]))
        content = b"\x14\x04" + random.bytes(10) if of == 246 else random.bytes(random.integers(7, 12))
        return bytes([15, of, len(content)]) + content
    width, is_object = 4 if kind & 1 else 2, kind < 2
    members = [stored_tree(random, depth - 1) for _ in range(random.integers(0, 4))]
    keys = [random.bytes(random.integers(0, 5)) for _ in members] if is_object else []
    at = 2 * width + len(members) * (1 + width) + len(keys) * (width + 2)
    heads, rest = b"", b""
    for key in keys:
        heads += (at + len(rest)).to_bytes(width, "little") + len(key).to_bytes(2, "little")
        rest += key
    for member in members:
        if len(member) - 1 <= width and member[0] in range(4, 9):
            heads += member.ljust(1 + width, b"\0")
        else:
            heads += member[:1] + (at + len(rest)).to_bytes(width, "little")
            rest += member[1:]
    size = at + len(rest)
    return bytes([kind]) + len(members).to_bytes(width, "little") + size.to_bytes(width, "little") + heads + rest
