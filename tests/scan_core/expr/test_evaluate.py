"""What filters mean, row by row: T passes, . does not (false or NULL), E fails. Agrees with Spark 4.3 in ANSI mode."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from nevermore.scan_core.expr.bind import bind
from nevermore.scan_core.expr.kernels import evaluation_error, judge
from nevermore.scan_core.model.errors import EvaluationError, PredicateError
from nevermore.scan_core.model.schema import Schema, arrow_type, parse_schema
from tests.support.evaluation import evaluate

NAN = float("nan")
SCHEMA: Schema = parse_schema(
    {
        "type": "struct",
        "fields": [
            {"id": 1, "name": "i", "type": "int"},
            {"id": 2, "name": "l", "type": "long"},
            {"id": 3, "name": "d", "type": "double"},
            {"id": 4, "name": "s", "type": "string"},
            {"id": 5, "name": "dt", "type": "date"},
            {"id": 6, "name": "ts", "type": "timestamp"},
            {"id": 7, "name": "tz", "type": "timestamptz"},
            {"id": 8, "name": "b", "type": "boolean"},
            {"id": 9, "name": "dec", "type": "decimal(10, 2)"},
            {"id": 10, "name": "f", "type": "float"},
            {"id": 11, "name": "u", "type": "uuid"},
            {"id": 12, "name": "bin", "type": "binary"},
            {
                "id": 13,
                "name": "st",
                "type": {
                    "type": "struct",
                    "fields": [{"id": 14, "name": "a", "type": "int"}, {"id": 15, "name": "x", "type": "string"}],
                },
            },
            {"id": 16, "name": "li", "type": {"type": "list", "element-id": 17, "element": "int"}},
            {
                "id": 18,
                "name": "m",
                "type": {"type": "map", "key-id": 19, "key": "string", "value-id": 20, "value": "int"},
            },
            {"id": 21, "name": "t", "type": "time"},
        ],
    }
)


def utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[misc,arg-type]


def moment(*parts: int) -> dt.datetime:
    return utc(*parts).replace(tzinfo=None)


VALUES = {
    "i": [1, 2, None, -5],
    "l": [10, None, 3, 2**62],
    "d": [1.5, NAN, None, -0.0],
    "s": ["abc", "Äb%c", None, ""],
    "dt": [dt.date(2020, 1, 31), dt.date(1969, 12, 31), None, dt.date(2024, 2, 29)],
    "ts": [moment(2020, 1, 1, 5, 6, 7), None, moment(1960, 1, 1), moment(2024, 2, 29, 23, 59, 59, 999_999)],
    "tz": [utc(2020, 1, 1, 5, 6, 7), None, utc(1960, 1, 1), utc(2024, 2, 29, 23, 59, 59, 999_999)],
    "b": [True, False, None, True],
    "dec": [Decimal("1.50"), Decimal("-2.25"), None, Decimal("99999999.99")],
    "f": [1.5, NAN, None, 0.1],
    "u": [b"0" * 16, None, b"1" * 16, b"a" * 16],
    "bin": [b"a", b"", None, b"\xff"],
    "st": [{"a": 1, "x": "q"}, None, {"a": None, "x": "z"}, {"a": 4, "x": None}],
    "li": [[1, 2], None, [], [None, 5]],
    "m": [[("k", 1)], None, [], [("z", None), ("k", 7)]],
    "t": [dt.time(10, 30), None, dt.time(0), dt.time(23, 59, 59, 5)],
}
COLUMNS = {f.field_id: pa.array(VALUES[f.name], arrow_type(f.type)) for f in SCHEMA.fields}


def verdicts(sql: str, columns: dict[int, pa.Array] = COLUMNS) -> str:
    num_rows = len(next(iter(columns.values())))
    passed, failed = np.ones(num_rows, dtype=np.bool_), np.zeros(num_rows, dtype=np.bool_)
    for conjunct in bind(sql, SCHEMA).conjuncts:
        outcome = judge(conjunct, columns, num_rows)
        here = outcome.failed if outcome.failed is not None else np.zeros(num_rows, dtype=np.bool_)
        assert not (outcome.passed & here).any()
        failed, passed = (failed & (outcome.passed | here)) | (passed & here), passed & outcome.passed
    return "".join("E" if bad else "T" if good else "." for good, bad in zip(passed, failed, strict=True))


CASES = """
i > 1                                              .T..
i > 1.5                                            .T..
i = 1.5                                            ....
i < 3000000000                                     TT.T
l < 3e0                                            ....
not (i > 1 and d < 5)                              TT.T
i between 1 and 2                                  TT..
i not between 1 and 2                              ...T
i in (1, 3, null)                                  T...
i not in (1, null)                                 ....
i not in (1, 3)                                    .T.T
i in (1, 3000000000)                               T...
i = null                                           ....
i <=> null                                         ..T.
i <=> l                                            ....
i is distinct from 1                               .TTT
i is null or l is not null                         T.TT
d = double('nan')                                  .T..
d > 1                                              TT..
d <= double('nan')                                 TT.T
d = 0                                              ...T
d in (0, double('nan'))                            .T.T
f = d                                              TT..
f = 0.1                                            ....
f = cast(0.1 as float)                             ...T
isnan(d)                                           .T..
not isnan(d)                                       T.TT
dec > 1.5                                          ...T
dec > 1.505                                        ...T
dec < 1.505                                        TT..
dec = 1.505                                        ....
dec = d                                            T...
b                                                  T..T
not b                                              .T..
b is null                                          ..T.
b and i > 0                                        T...
b or i > 0                                         TT.T
b = 'true'                                         T..T
b > false                                          T..T
s like 'a%'                                        T...
s like '%b_c'                                      .T..
s like '%b\\%c'                                    .T..
s like '_b%'                                       TT..
s not like 'a%'                                    .T.T
s like ''                                          ...T
s like '%'                                         TT.T
s ilike 'ä%'                                       .T..
s rlike '^.b'                                      TT..
s rlike 'c$'                                       TT..
s in ('abc', 'x')                                  T...
startswith(s, 'ab')                                T...
endswith(s, 'c')                                   TT..
contains(s, 'b')                                   TT..
lower(s) = 'äb%c'                                  .T..
upper(s) = 'ÄB%C'                                  .T..
length(s) = 4                                      .T..
substr(s, 2, 2) = 'b%'                             .T..
substr(s, -2) = 'bc'                               T...
substr(s, -5, 3) = 'a'                             T...
left(s, 1) = 'a'                                   T...
reverse(s) = 'cba'                                 T...
replace(s, 'b', 'xx') = 'axxc'                     T...
trim(concat(' ', s, ' ')) = s                      TT.T
s || '!' = 'abc!'                                  T...
dt > '2020-01-01'                                  T..T
year(dt) = 2020 and quarter(dt) = 1                T...
month(ts) = 1                                      T.T.
day(dt) = 31                                       TT..
dayofweek(dt) = 6 and weekday(dt) = 4              T...
dayofyear(dt) = 60                                 ...T
weekofyear(dt) = 5                                 T...
hour(ts) = 5 and minute(ts) = 6 and second(tz) = 7 T...
extract(doy from dt) = 31                          T...
date_trunc('month', ts) = date '2020-01-01'        T...
date_trunc('week', ts) = date '2019-12-30'         T...
trunc(dt, 'quarter') = date '2024-01-01'           ...T
date_add(dt, 1) = date '2020-02-01'                T...
date_sub(dt, 31) = date '2019-12-31'               T...
dt + 1 = date '1970-01-01'                         .T..
add_months(dt, 1) = date '2020-02-29'              T...
dt + interval 1 month = date '2020-02-29'          T...
ts - interval 1 day > timestamp '2019-12-31'       T..T
last_day(dt) = dt                                  TT.T
datediff(dt, date '2020-01-01') = 30               T...
ts > timestamp '2020-01-01 00:00:00'               T..T
ts > date '2020-01-01'                             T..T
ts = tz                                            T.TT
tz >= '2020-01-01T05:06:07Z'                       T..T
cast(ts as date) = date '2020-01-01'               T...
cast(ts as string) = '2020-01-01 05:06:07'         T...
cast(ts as string) like '%.999999'                 ...T
t > '10:00'                                        T..T
cast(t as string) = '23:59:59.000005'              ...T
i + 2147483647 > 0                                 EE.T
i - 2147483647 < 0                                 TT.E
l * 4 > 0                                          T.TE
i * 3 = -15                                        ...T
i / 0 = 1                                          EE.E
i + cast(s as int) > 0                             EE.E
i = cast(s as int)                                 EE.E
l + cast(s as int) > 0                             E..E
cast(s as int) % l = 0                             E..E
cast(s as int) + l > 0                             EE.E
l <=> cast(s as int)                               EE.E
1 / 0 = i                                          EEEE
i / 2 = 0.5                                        T...
i div 2 = -2                                       ...T
i % 2 = -1                                         ...T
mod(i, 0) = 1                                      EE.E
d % 1 = 0.5                                        T...
-i > 0                                             ...T
abs(i) = 5                                         ...T
dec + 1 > 2                                        T..T
dec * 2 = 3                                        T...
dec / 3 = 0.5                                      T...
dec / (dec - 1.5) > 0                              ET.T
dec % 2 = 1.5                                      T...
floor(d) = 1                                       T...
ceil(dec) = 2                                      T...
floor(dec) = -3                                    .T..
try_divide(i, 0) is null                           TTTT
try_add(i, 2147483647) is null                     TTT.
try_mod(i, i - 1) is null                          T.T.
cast(s as int) = 1                                 EE.E
try_cast(s as int) is null                         TTTT
cast(i as string) = '-5'                           ...T
cast(d as int) = 1                                 TE..
cast(dec as int) = -2                              .T..
cast(dec as double) = 99999999.99                  ...T
cast(dec as decimal(4, 1)) = 1.5                   T..E
cast(i as boolean)                                 TT.T
cast(b as int) = 1                                 T..T
cast(u as string) like '3030%'                     T...
u = '30303030-3030-3030-3030-303030303030'         T...
u > '30303030-3030-3030-3030-303030303030'         ..TT
bin = X'ff'                                        ...T
bin in (X'', X'61')                                TT..
coalesce(i, 7) = 7                                 ..T.
coalesce(i, 1 / 0) = 1                             T.E.
nullif(i, 1) is null                               T.T.
nvl2(i, 'a', 'b') = 'b'                            ..T.
if(b, i, l) = 1                                    T...
if(i = 1, 1, 1 / 0) = 1                            TEEE
case when i = 1 then 'one' when i > 1 then 's' end = 's'   .T..
case i when 2 then 'x' else s end = 'x'            .T..
i = 1 or 1 / (i - 1) < 1                           T..T
i = 1 and 1 / (i - 1) < 1                          E...
i <> 1 and 1 / (i - 1) < 1                         ...T
st.a = 1                                           T...
st.x is null                                       .T.T
st is null                                         .T..
st is not null and st.a is null                    ..T.
li[0] = 1                                          T.E.
li[1] = 2                                          T.E.
get(li, 1) = 5                                     ...T
element_at(li, -1) = 2                             T.E.
try_element_at(li, 2) = 5                          ...T
try_element_at(li, 3) is null                      TTTT
m['k'] = 7                                         ...T
m.k = 1                                            T...
m['z'] is null and m is not null                   T.TT
map_contains_key(m, 'z')                           ...T
array_contains(li, 5)                              ...T
not array_contains(li, 7)                          T.T.
size(li) = 2                                       T..T
cardinality(m) = 0                                 ..T.
(i > 0) = (l > 5)                                  T...
(i > 0) is null                                    ..T.
"""


@pytest.mark.each(2)
@pytest.mark.parametrize("case", [c for c in CASES.strip().split("\n") if c])
def test_filter_passes_fails_or_drops_each_row(case: str) -> None:
    sql, expected = case.rsplit(" ", 1)
    assert verdicts(sql) == expected


@pytest.mark.each(8)
@pytest.mark.parametrize("case", [c for c in CASES.strip().split("\n") if c])
def test_dictionaries_and_slices_change_nothing(case: str) -> None:
    sql, expected = case.rsplit(" ", 1)
    order = [3, 0, 1, 2, 2, 1, 0, 3] * 8
    columns = {i: pa.concat_arrays([a.slice(2, 1), a.take(pa.array(order))]).slice(1) for i, a in COLUMNS.items()}
    for i in (1, 4, 5, 9, 12):
        columns[i] = columns[i].dictionary_encode()
    assert verdicts(sql, columns) == "".join(expected[k] for k in order)


@pytest.mark.parametrize(
    "where",
    [
        "d <> 1 and d <> double('NaN')",
        "d <> double('NaN') and d not in (1.0D)",
        "d not in (1.0D, double('NaN'))",
        "not (d = 1 or d = double('NaN'))",
    ],
)
def test_one_value_and_nan_are_both_excluded(where: str) -> None:
    values = pa.array([1.0, 2.0, NAN, None])
    kept = np.ones(4, np.bool_)
    for conjunct in bind(where, SCHEMA).conjuncts:
        kept &= evaluate(conjunct, {3: values}, 4)
    assert kept.tolist() == [False, True, False, False]


def test_struct_members_may_come_without_their_struct() -> None:
    leaf = pa.array([1, None, None, 4], pa.int32())
    (conjunct,) = bind("st.a > 1", SCHEMA).conjuncts
    assert evaluate(conjunct, {14: leaf}, 4).tolist() == [False, False, False, True]


def test_zero_rows_are_fine() -> None:
    empty = {i: a.slice(0, 0) for i, a in COLUMNS.items()}
    for case in CASES.strip().split("\n"):
        assert verdicts(case.rsplit(" ", 1)[0], empty) == ""


def test_failure_says_what_and_how_to_avoid_it() -> None:
    (conjunct,) = bind("i / (i - 1) > 0", SCHEMA).conjuncts
    with pytest.raises(EvaluationError, match=r"division by zero in: cast\(i as double\).*try_divide"):
        evaluate(conjunct, COLUMNS, 4)


def test_a_failing_row_counts_only_if_all_other_conjuncts_pass() -> None:
    safe = bind("i <> 1 and 1 / (i - 1) < 1", SCHEMA)
    outcomes = [judge(c, COLUMNS, 4) for c in safe.conjuncts]
    alive = np.logical_and.reduce([o.passed if o.failed is None else o.passed | o.failed for o in outcomes])
    assert not any((o.failed & alive).any() for o in outcomes if o.failed is not None)
    assert "division by zero" in str(evaluation_error(safe.conjuncts[1], outcomes[1]))


def test_large_in_lists_of_every_kind() -> None:
    values = pa.array([*range(0, 3000, 3), None], pa.int64())
    columns = {2: values, 1: values.cast(pa.int32()), 4: values.cast(pa.string()), 3: values.cast(pa.float64())}
    wanted = set(range(0, 3000, 7))
    sparse = ", ".join(str(v if v % 2 else v + 10**15) for v in wanted)
    dense = ", ".join(map(str, wanted))
    expected = [v is not None and v in wanted for v in values.to_pylist()]
    for column in ("i", "l", "d"):
        (conjunct,) = bind(f"{column} in ({dense})", SCHEMA).conjuncts
        assert evaluate(conjunct, columns, len(values)).tolist() == expected
    (conjunct,) = bind("s in (" + ", ".join(f"'{v}'" for v in wanted) + ")", SCHEMA).conjuncts
    assert evaluate(conjunct, columns, len(values)).tolist() == expected
    (conjunct,) = bind(f"l in ({sparse})", SCHEMA).conjuncts
    odd = [v is not None and v in wanted and v % 2 == 1 for v in values.to_pylist()]
    assert evaluate(conjunct, columns, len(values)).tolist() == odd


def test_special_cases_of_letters_follow_java() -> None:
    columns = {4: pa.array(["İ", "ΑΣ", "ß", "ﬁ", "plain"])}
    (lowered,) = bind("lower(s) in ('i\u0307', 'ας')", SCHEMA).conjuncts
    assert evaluate(lowered, columns, 5).tolist() == [True, True, False, False, False]
    (raised,) = bind("upper(s) in ('SS', 'FI')", SCHEMA).conjuncts
    assert evaluate(raised, columns, 5).tolist() == [False, False, True, True, False]


def test_costly_expressions_are_evaluated_once_per_distinct_value(monkeypatch: pytest.MonkeyPatch) -> None:
    from nevermore.scan_core.expr import kernels

    seen: list[int] = []
    plain_cast = kernels.cast

    def counting(array: pa.Array, *types: object) -> object:
        seen.append(len(array))
        return plain_cast(array, *types)  # type: ignore[arg-type]

    monkeypatch.setattr(kernels, "cast", counting)
    repeating = pa.array([str(k % 5) if k % 7 else None for k in range(10_000)])
    distinct = pa.array([str(k) for k in range(10_000)])
    (conjunct,) = bind("cast(s as int) = 3", SCHEMA).conjuncts
    expected = [k % 7 != 0 and k % 5 == 3 for k in range(10_000)]
    assert evaluate(conjunct, {4: repeating}, 10_000).tolist() == expected
    assert evaluate(conjunct, {4: repeating.dictionary_encode()}, 10_000).tolist() == expected
    assert evaluate(conjunct, {4: distinct}, 10_000).sum() == 1
    assert seen == [10_000, 6, 10_000]


def test_later_operands_see_only_undecided_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from nevermore.scan_core.expr import strings

    seen: list[int] = []
    kernel = strings.KERNELS["rlike"]

    def counting(arguments: tuple[pa.Array, ...], *types: object) -> object:
        seen.append(len(arguments[0]))
        return kernel(arguments, *types)  # type: ignore[arg-type]

    from nevermore.scan_core.expr import kernels

    monkeypatch.setitem(kernels._KERNELS, "rlike", counting)  # type: ignore[arg-type]
    columns = {1: pa.array(range(1000), pa.int32()), 4: pa.array([f"x{k}" for k in range(1000)])}
    (conjunct,) = bind("i < 900 or s rlike '5$'", SCHEMA).conjuncts
    assert evaluate(conjunct, columns, 1000).sum() == 910
    (conjunct,) = bind("b is null or (i >= 990 and s rlike '5$')", SCHEMA).conjuncts
    assert evaluate(conjunct, columns | {8: pa.array([True] * 1000)}, 1000).sum() == 1
    assert seen == [100, 10]


@pytest.mark.parametrize(
    ("sql", "failing"),
    [
        ("i + i < 0", 500),
        ("i * l > 0 or i is null", 500),
        ("-2147483640 - i > 0", 500),
        ("l div -1 < 0", 500),
        ("try_multiply(i, i) is null", 0),
    ],
)
def test_many_overflows_are_found_at_once(monkeypatch: pytest.MonkeyPatch, sql: str, failing: int) -> None:
    from nevermore.scan_core.expr import kernels

    seen: list[int] = []
    computed = kernels._computed

    def counting(node: object, frame: object) -> object:
        seen.append(1)
        return computed(node, frame)  # type: ignore[arg-type]

    monkeypatch.setattr(kernels, "_computed", counting)
    columns = {
        1: pa.array([2**31 - 1, 3, None, 2**31 - 1] * 250, pa.int32()),
        2: pa.array([-(2**63), 5, 7, -(2**63)] * 250, pa.int64()),
    }
    (conjunct,) = bind(sql, SCHEMA).conjuncts
    found = judge(conjunct, columns, 1000)
    assert (0 if found.failed is None else found.failed.sum()) == failing
    assert found.failed is None or (found.failed.reshape(-1, 4) == [True, False, False, True]).all()
    assert found.reason.partition(" of ")[0] == ("overflow" if failing else "")
    assert len(seen) < 20


def test_the_hint_for_the_whole_part_of_a_quotient_cuts_off() -> None:
    with pytest.raises(PredicateError, match=r"write cast\(a / b as bigint\)"):
        bind("dec div 2 = 3", SCHEMA)
    columns = {9: pa.array([Decimal("-7.00"), Decimal("7.99")], pa.decimal128(10, 2))}
    (conjunct,) = bind("cast(dec / 2 as bigint) in (-3, 3)", SCHEMA).conjuncts
    assert evaluate(conjunct, columns, 2).all()
