"""No exception of a library leaves an evaluation: each function and cast over extreme values of each type gives rows, or rows that failed."""

import decimal
import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from nevermore.scan_core.expr.bind import bind
from nevermore.scan_core.expr.coercion import can_cast
from nevermore.scan_core.expr.kernels import judge
from nevermore.scan_core.expr.rules import FUNCTIONS
from nevermore.scan_core.model.errors import PredicateError
from nevermore.scan_core.model.schema import Schema, arrow_type, parse_schema, parse_type

pytestmark = pytest.mark.slow

NAN, INF = float("nan"), float("inf")
INTS, LONGS = (2**31 - 1, -(2**31), 0, 1, -1), (2**63 - 1, -(2**63), 0, 1, -1)
DOUBLES = (NAN, INF, -INF, -0.0, 5e-324, 1.7976931348623157e308, -1e38, 9.999999999999999e37, 2.0**63, -(2.0**63))
FLOATS = (NAN, INF, -INF, -0.0, 1e-45, 3.4028234663852886e38, 2.0**31, -(2.0**31))
TEXTS = (
    *("", " ", "\x00", "a" * 300, "1" * 80, "-" + "9" * 38, "1e-999999999", "1e999999999", "1e400", "1e-400", "." * 5, "1."),
    *("0." + "0" * 60 + "1", "\uff11\uff12", "\u0663.\u0665", "\U0001d7cf", "İΣß", "\ud7ff\ue000", "\U0010ffff", "inf", "nan", "x'", "%_\\", "\\"),
    *("9999999-12-31", "-9999999-01-01", "294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775808", "0000-00-00"),
    *("12:30", "T1:2:3.", "2020-01-01 00:00:00+18:00", "-290308-12-21 19:59:05.224192", "true", "é" * 50),
)  # fmt: skip
BYTES = (b"", b"\xff", b"\xc3", b"\x00", b"ok", b"\xed\xa0\x80", b"a" * 300, bytes(range(256)))


def decimals(precision: int, scale: int) -> list[Decimal]:
    most = (Decimal(10) ** precision - 1).scaleb(-scale)
    return [v.quantize(Decimal(1).scaleb(-scale)) for v in (most, -most, Decimal(0), Decimal(1).scaleb(-scale))]


VALUES: dict[str, Any] = {
    "int": INTS,
    "long": LONGS,
    "float": FLOATS,
    "double": DOUBLES,
    "boolean": (True, False),
    "string": TEXTS,
    "binary": BYTES,
    "fixed[2]": (b"\xff\xfe", b"ok"),
    "uuid": (bytes(16), b"\xff" * 16),
    "date": INTS,
    "time": (0, 86_399_999_999),
    **dict.fromkeys(("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), LONGS),
}


def columns() -> tuple[Schema, dict[int, pa.Array]]:
    """A column of each type, all of one length; each value beside each NULL and in several orders."""
    with decimal.localcontext() as context:
        context.prec = 100
        values = VALUES | {
            f"decimal({p}, {s})": decimals(p, s) for p, s in ((9, 2), (18, 18), (38, 0), (38, 19), (38, 38))
        }
        lists = {"list": [[], None, [None], [2**31 - 1, -(2**31)]], "map": [[], None, [("", None)], [("k", 1)]]}
        fields, arrays = [], {}
        for index, (kind, found) in enumerate(values.items(), start=1):
            field = {"id": index, "name": f"c{index}", "type": kind}
            fields.append(field)
            target = arrow_type(parse_type(kind))
            cycle = itertools.islice(itertools.cycle([*found, None]), 97)
            storage = pa.int32() if pa.types.is_date(target) else pa.int64()
            raw = pa.array(list(cycle), storage if pa.types.is_temporal(target) else target)
            arrays[index] = raw.cast(target) if pa.types.is_temporal(target) else raw
        fields += [
            {"id": 101, "name": "li", "type": {"type": "list", "element-id": 102, "element": "int"}},
            {"id": 103, "name": "m", "type": {"type": "map", "key-id": 104, "key": "string", "value-id": 105, "value": "int"}},
        ]  # fmt: skip
    schema = parse_schema({"type": "struct", "fields": fields})
    for field_id, name in ((101, "list"), (103, "map")):
        kind = arrow_type(schema.find(f"{'li' if name == 'list' else 'm'}").type)
        arrays[field_id] = pa.array(list(itertools.islice(itertools.cycle(lists[name]), 97)), kind)
    # files may hold text that is not UTF-8
    arrays[6] = pa.concat_arrays(
        [arrays[6][:90], pa.array([b"\xff", b"a\xc3\xa9\xc3"] * 3 + [b"\xed\xa0\x80"]).view(pa.string())]
    )
    return schema, arrays


SCHEMA, COLUMNS = columns()
OPERANDS = [field.name for field in SCHEMA.fields]
CONSTANTS = ["0", "-1", "2147483647", "9223372036854775807", "99999999999999999999999999999999999999", "0.1", "1e308", "''", "'\uff19'",
             "'month'", "X'ff'", "date '9999-12-31'", "timestamp '9999-12-31 00:00:00'", "null", "true"]  # fmt: skip
SYMBOLS = {"[]": "{0}[{1}]", "negative": "- {0}", "~": "~ {0}", "try_mod": "try_mod({0}, {1})"}


def calls(name: str) -> Iterator[str]:
    function = FUNCTIONS[name]
    for count in range(max(1, function.least), min(3, function.most or 2) + 1):
        pools = [OPERANDS, *[OPERANDS + CONSTANTS] * (count - 1)]
        if count == 3:
            pools = [OPERANDS, [*CONSTANTS, "c1", "c6"], [*CONSTANTS, "c1", "c6"]]
        if name in {"date_trunc", "trunc"}:
            pools = [["'year'", "'week'", "'hour'", "'microsecond'"], OPERANDS][:: -1 if name == "trunc" else 1]
        for arguments in itertools.product(*pools):
            if name in SYMBOLS:
                yield SYMBOLS[name].format(*arguments)
            elif name.isidentifier() and name != "div":
                yield f"{name}({', '.join(arguments)})"
            else:
                yield f"{arguments[0]} {name} {arguments[-1]}"


def judge_all(texts: Iterator[str]) -> int:
    done = 0
    for text in texts:
        try:
            conjuncts = bind(f"({text}) is null", SCHEMA).conjuncts
        except PredicateError:
            continue
        for conjunct in conjuncts:
            try:
                judge(conjunct, COLUMNS, 97)
            except Exception as error:
                raise AssertionError(f"{text}: {error!r}") from error
            done += 1
    return done


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_give_rows_or_failed_rows(name: str) -> None:
    assert judge_all(calls(name))


@pytest.mark.parametrize("kind", [*(k for k in VALUES if "_ns" not in k and "fixed" not in k), "decimal(9, 2)", "decimal(38, 0)", "decimal(38, 38)", "decimal(1, 1)"])  # fmt: skip
def test_casts_give_rows_or_failed_rows(kind: str) -> None:
    target = parse_type(kind)
    sources = [field.name for field in SCHEMA.fields if can_cast(field.type, target)]
    name = {"timestamp": "timestamp_ntz", "timestamptz": "timestamp"}.get(kind, kind)
    assert judge_all(f"{form}({source} as {name})" for source in sources for form in ("cast", "try_cast"))
