"""Every cast of decoding, of values that no source should send; run as a program, because a library may end the process.

Prints how much was tried (with `--few`, some types from JSON alone). A cast may refuse a value (NULL, and marked), it may not raise, and what it does not refuse is the
value that was sent.
"""

import sys
from collections.abc import Iterator, Sequence
from decimal import Context, Decimal, InvalidOperation
from itertools import product

import numpy as np
import orjson
import pyarrow as pa

from nevermore.pipelines.decode import arrow_columns, json_columns
from nevermore.pipelines.decode.arrow_columns import fitted
from nevermore.pipelines.decode.batches import of_values
from nevermore.pipelines.decode.events import _comparable, _has_order
from nevermore.pipelines.decode.value_types import Encoding, ValueType, from_arrow
from nevermore.pipelines.jsonscan.members import scan_objects
from nevermore.pipelines.jsonscan.spans import from_binary

EXPONENTS = (
    0,
    1,
    37,
    38,
    39,
    76,
    77,
    100,
    308,
    325,
    400,
    32_768,
    999_999,
    2**31 - 1,
    2**31,
    999_999_999,
    2**63,
    10**30,
)
NUMBERS = (
    *(f"{sign}{digits}e{way}{power}" for sign in ("", "-") for digits in ("0", "1", "9.99", "0.1")
      for way in ("-", "+", "") for power in EXPONENTS),
    *(f"{sign}{digits}" for sign in ("", "-") for length in (1, 18, 19, 20, 37, 38, 39, 76, 77, 400, 5_000)
      for digits in ("9" * length, "1" + "0" * length, "0." + "0" * length + "1", "0." + "3" * length, "7" * length + ".5")),
)  # fmt: skip
TEXTS = (
    *NUMBERS,
    "", " ", "-", "+", ".", "e", "e5", "1e", "1e+", "1E-", "+1", "-.5", "5.", "1_000", "0x10", "NaN", "-inf", "Infinity",
    "\u0661", "1\u00a0000", "\x00", "a\x00b", "null", "true", "AQ==", "AQ=", "=", "////", "Ag" * 3000, "zz", "f" * 40, "\\x", "\\xzz",
    "0000-00-00", "9999-12-31", "10000-01-01", "-0001-01-01", "2024-02-30", "2300-01-01 00:00:00", "1500-01-01T00:00:00Z",
    "99999999-01-01T00:00:00Z", "2024-01-01T24:00:00", "2024-01-01T00:00:60", "2024-01-01T00:00:00+99:99",
    "2024-01-01T00:00:00." + "9" * 400, "Sat Jan 01 00:00:00 2300", "Sat Jan 01 00:00:00 99999", "infinity", "25:61:61",
    "23:59:60", "-838:59:59", "838:59:59", "00:00:00.1234567891", "2024-01-01 BC", "1" * 5000, "-" * 5000, "\u00e9" * 1000,
    "123e4567-e89b-12d3-a456-426614174000", "123e4567", "f" * 32, "{", "[", '{"a": 1e-999999999}',
)  # fmt: skip
BIG = Context(prec=20_000, Emax=10**17, Emin=-(10**17))

LEAVES: Sequence[pa.DataType] = (
    pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.binary(16), pa.binary(3),
    *(pa.decimal128(*shape) for shape in ((38, 10), (38, 0), (10, 2), (38, 38), (1, 0), (1, 1))),
    pa.date32(), pa.time64("us"), *(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")),
)  # fmt: skip
OF_TYPE: dict[str, tuple[Encoding, ...]] = {
    "decimal": (Encoding.NATURAL, Encoding.PLAIN, Encoding.BASE64, Encoding.SCALED),
    "binary": (Encoding.NATURAL, Encoding.BASE64, Encoding.HEX, Encoding.LATIN1),
    "time": (Encoding.NATURAL, Encoding.DAYS, Encoding.SECONDS, Encoding.MILLIS, Encoding.MICROS, Encoding.NANOS),
}


FEW = (
    ValueType(pa.decimal128(38, 10), Encoding.PLAIN),
    ValueType(pa.decimal128(38, 10), Encoding.SCALED),
    ValueType(pa.decimal128(38, 38), Encoding.BASE64, scale=-2_000_000_000),
    ValueType(pa.timestamp("ns", "UTC")),
)
"""Types that values of Debezium often have, for a quick look."""


def value_types() -> Iterator[ValueType]:
    """Every type that a column can have with every way to write it."""
    for arrow in LEAVES:
        text = str(arrow)
        kind = "time" if pa.types.is_temporal(arrow) else "binary" if "binary" in text else text.partition("1")[0]
        for encoding in OF_TYPE.get(
            kind, (Encoding.NATURAL, Encoding.TEXT) if arrow == pa.string() else (Encoding.NATURAL,)
        ):
            if kind == "time" and pa.types.is_time(arrow) and encoding is Encoding.DAYS:
                continue
            for explicit in (False, True):
                leaf = from_arrow(arrow, encoding, explicit=explicit)
                yield leaf
            yield ValueType(pa.list_(pa.field("element", arrow)), members=(("element", leaf),))
            yield ValueType(pa.struct([pa.field("a", arrow)]), members=(("a", leaf),))
    for scale in (-(2**63), -2_000_000_000, -39, -1, 0, 5, 39, 400, 2**31, 2**63 - 1):
        yield ValueType(pa.decimal128(38, 10), Encoding.BASE64, scale=scale)


def values_as_json() -> list[str]:
    """The values as JSON: as text, as bare numbers, and inside objects and lists."""
    quoted = [orjson.dumps(text).decode() for text in TEXTS]
    bare = [text.replace("+", "") if text[0] != "-" else text for text in NUMBERS]
    scales = (
        "0",
        "-2000000000",
        "2000000000",
        "39",
        "-39",
        "1e9",
        '"5"',
        str(2**63 - 1),
        str(-(2**63)),
        str(2**64),
        "null",
        "1.5",
    )
    unscaled = ('"AQ=="', '"AA=="', '"' + "f" * 4000 + '"', "5", "null", '""')
    scaled = [f'{{"scale": {scale}, "value": {value}}}' for scale, value in product(scales, unscaled)]
    nested = [f"[{value}]" for value in (*quoted[:40], *bare[:40])] + [
        f'{{"a": {value}}}' for value in (*quoted[:40], *bare[:40])
    ]
    return [*quoted, *bare, *scaled, *nested, "true", "false", "null", "{}", "[]", "[[]]", '{"scale": 1}']


def arrow_columns_of() -> Iterator[pa.Array]:
    """The values as columns of files."""
    integers = [0, 1, -1, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 86_400_000_000, 10**14, 10**17]
    floats = [
        0.0,
        -0.0,
        1e300,
        -1e300,
        1e38,
        1e-300,
        5e-324,
        float("nan"),
        float("inf"),
        -float("inf"),
        0.1,
        1e22,
        2.0**63,
    ]
    yield pa.array(TEXTS)
    yield pa.array(TEXTS).dictionary_encode()
    yield pa.array(
        [text.encode() for text in TEXTS] + [b"\xff\xfe", b"\x80" * 16, b"\x7f" + b"\xff" * 15, b"\xff" * 17]
    )
    yield pa.array([b"\xff" * 16, b"\x00" * 16], pa.binary(16))
    yield pa.array(integers)
    yield pa.array([0, 2**64 - 1, 2**63], pa.uint64())
    yield pa.array([-128, 127], pa.int8())
    yield pa.array(floats)
    yield pa.array(floats, pa.float64()).cast(pa.float32(), safe=False)
    yield pa.array([True, False])
    for precision, scale in ((38, 0), (38, 10), (38, 38), (5, 2)):
        yield pa.array(
            [Decimal(n).scaleb(-scale, BIG) for n in (0, 1, 10**precision - 1, 1 - 10**precision)],
            pa.decimal128(precision, scale),
        )
    yield pa.array([Decimal(0), Decimal(10) ** 75], pa.decimal256(76, 0))
    for unit in ("s", "ms", "us", "ns"):
        for zone in (None, "UTC"):
            yield pa.array(integers).view(pa.timestamp(unit, zone))
        yield pa.array(integers).view(pa.duration(unit))
    yield pa.array([0, 2**31 - 1, -(2**31)], pa.int32()).view(pa.date32())
    yield pa.array([0, 86_399_999_999_999], pa.int64()).view(pa.time64("ns"))
    for scale in (-(2**63), -2_000_000_000, 39, 2_000_000_000, 2**63 - 1):
        yield pa.array(
            [
                {"scale": scale, "value": b"\x01"},
                {"scale": 0, "value": b"\xff" * 20},
                {"scale": None, "value": None},
                None,
            ]
        )
    yield pa.array([{"scale": "x", "value": "AQ=="}])
    yield pa.array([["1e-999999999"], [], None])
    yield pa.array([{"a": "1e-999999999"}, None])


def said(text: str) -> Decimal | None:
    """The finite number that a text states; None if it states none."""
    try:
        digits, _, power = text.lower().partition("e")
        number = Decimal(text if int(power or 0) and Decimal(digits, BIG) else digits, BIG)
    except (InvalidOperation, ValueError):
        return None
    return number if number.is_finite() else None


def check(
    values: pa.Array,
    bad: "np.ndarray[tuple[int], np.dtype[np.bool_]]",
    given: "np.ndarray[tuple[int], np.dtype[np.bool_]]",
    what: str,
) -> None:
    """NULL where refused, something where not."""
    valid = np.asarray(values.is_valid())
    values.validate(full=True)
    if (valid & bad).any() or (~valid & given & ~bad).any():
        raise AssertionError(f"{what}: refused and NULL differ")


def main() -> None:
    """Try all of them."""
    tried = 0
    texts = values_as_json()
    document = b"".join(f'{{"v": {text}}}\n'.encode() for text in texts)
    column = scan_objects(from_binary(pa.array(document.splitlines()))).column("v")
    assert len(column) == len(texts)
    few = "--few" in sys.argv
    for wanted in FEW if few else value_types():
        values, bad = json_columns.decode(column, wanted)
        check(values, bad, column.has_value, f"JSON as {wanted}")
        of_values("v", column, bad, wanted)
        for into in () if few else LEAVES:
            fitted(values, into)
        if pa.types.is_decimal(wanted.arrow) and wanted.encoding is Encoding.PLAIN:
            for text, value in zip(texts, values.to_pylist(), strict=True):
                stated = (
                    said(orjson.loads(text) if text.startswith('"') else text)
                    if value is not None and text[0] != "{"
                    else value
                )
                if value != stated:
                    raise AssertionError(f"{text[:60]} became {value} as {wanted.arrow}")
        tried += len(texts)
        for held in () if few else arrow_columns_of():
            values, bad = arrow_columns.decode(held, wanted)
            check(values, bad & np.asarray(held.is_valid()), np.zeros(len(held), np.bool_), f"{held.type} as {wanted}")
            of_values("v", held, bad, wanted)
            tried += len(held)
    for held in arrow_columns_of():
        if _has_order(held.type):
            _comparable(held)
    sys.stdout.write(f"{tried} values\n")


if __name__ == "__main__":
    main()
