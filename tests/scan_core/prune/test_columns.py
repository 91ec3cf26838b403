"""Files decided together fare as files decided one by one, whatever their statistics, partitions and the filter."""

import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nevermore.scan_core.expr.bind import bind
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.metadata.bulk_manifests import file_at
from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.model.schema import PrimitiveType
from nevermore.scan_core.model.snapshot import PartitionField, PartitionSpec
from nevermore.scan_core.model.table_metadata import TableMetadata
from nevermore.scan_core.model.transforms import normalise_value, parse_transform
from nevermore.scan_core.native import compiled
from nevermore.scan_core.plan.file_pruner import FilePruner, PlanTrace
from nevermore.scan_core.plan.file_set import ColumnPart, key_bounds, key_bounds_of_columns
from nevermore.scan_core.prune.facts import NoColumnError, Spans, _decoded, array_of, match_columns
from nevermore.scan_core.split.tasks import ScanContext
from tests.support.bound_bytes import encode_bound
from tests.support.entry_columns import Entry, entry_columns
from tests.support.random_predicates import SCHEMA, Sql, predicates

_QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck))
num_examples = pytest.mark.parametrize("num_examples", [20, pytest.param(1000, marks=pytest.mark.slow)])
_NAMES = ("i", "l", "f", "d", "dec", "s", "dt", "ts", "b", "tz", "bin", "big", "s2")
_IDS = {name: SCHEMA.find(name).field_id for name in _NAMES}
_TYPES: dict[int, PrimitiveType] = {i: SCHEMA.find(name).type for name, i in _IDS.items()}  # type: ignore[misc]
_TYPES |= {11: PrimitiveType("int"), 12: PrimitiveType("string")}
_SPECS = [
    (),
    (("i", "identity"),),
    (("s", "identity"), ("l", "bucket[3]")),
    (("s", "truncate[2]"),),
    (("s", "bucket[4]"),),
    (("i", "truncate[3]"), ("dec", "truncate[100]")),
    (("ts", "day"), ("dt", "month")),
    (("d", "identity"), ("b", "identity")),
    (("i", "void"), ("i", "bucket[2]")),
]
_DAY = 86_400_000_000


@pytest.fixture(autouse=True, scope="module")
def kernels() -> None:
    compiled.load()


def values_of(kind: PrimitiveType) -> st.SearchStrategy[Any]:
    match kind.name:
        case "int":
            return st.integers(-5, 12) | st.sampled_from([-(2**31), 2**31 - 1])
        case "long":
            return st.integers(-5, 12) | st.sampled_from([-(2**63), 2**63 - 1])
        case "date":
            return st.integers(18_250, 18_300) | st.sampled_from([-(2**31), 2**31 - 1])
        case "timestamp" | "timestamptz":
            return st.integers(18_250, 18_300).map(lambda day: day * _DAY) | st.sampled_from([-(2**63), 2**63 - 1])
        case "float" | "double":
            return st.sampled_from([-1.5, -0.0, 0.0, 1.0, 2.5, float("inf"), float("-inf")])
        case "decimal":
            return st.integers(-500, 500).map(lambda n: Decimal(n).scaleb(-kind.parameters[1]))
        case "boolean":
            return st.booleans()
        case "binary":
            return st.binary(max_size=20) | st.just(b"\xff" * 16)
        case _:
            ends = st.sampled_from(["", "a", "z", "\x7f", "é", "\U0010ffff"])
            return st.text("ab", max_size=3) | ends | st.builds(lambda end: "a" * 15 + end, ends)


@st.composite
def entries(draw: st.DrawFn, num_partitions: int) -> Entry:
    entry: dict[str, dict[int, Any]] = {"lower": {}, "upper": {}, "nulls": {}, "nans": {}, "values": {}}
    for field_id in draw(st.permutations(list(_TYPES))):
        kind = _TYPES[field_id]
        found = sorted(draw(st.lists(values_of(kind), min_size=2, max_size=2)))
        for name, value in zip(("lower", "upper"), found, strict=True):
            if draw(st.integers(0, 5)):
                entry[name][field_id] = encode_bound(value, kind)
        if not draw(st.integers(0, 15)):
            entry["lower"][field_id] = draw(st.binary(max_size=9))
        if not draw(st.integers(0, 15)):  # the width before a promotion, or NaN
            entry["upper"][field_id] = draw(st.binary(min_size=4, max_size=4) | st.just(b"\0\0\0\0\0\0\xf8\x7f"))
        for name in ("nulls", "nans", "values"):
            if draw(st.integers(0, 3)):
                entry[name][field_id] = draw(st.sampled_from([0, 0, 5, 10]) | st.just(2**63 - 1))
    return Entry(**entry, record_count=10, partition=draw(st.integers(0, num_partitions - 1)))


def spec_of(fields: tuple[tuple[str, str], ...]) -> PartitionSpec:
    return PartitionSpec(0, tuple(PartitionField(1000 + i, _IDS[n], f"p{i}", t) for i, (n, t) in enumerate(fields)))


@st.composite
def partitions(draw: st.DrawFn, fields: tuple[tuple[str, str], ...]) -> tuple[Any, ...]:
    found = []
    for name, text in fields:
        source, transform = _TYPES[_IDS[name]], parse_transform(text)
        value: Any = None
        if draw(st.integers(0, 5)) and transform.kind != "void":
            match transform.kind:
                case "bucket":
                    value = draw(st.integers(0, 3))
                case "day":
                    value = draw(st.integers(18_250, 18_300))
                case "month":
                    value = draw(st.integers(598, 602))
                case _:
                    value = draw(values_of(source))
        found.append(normalise_value(value, transform.result_type(source)))
    return tuple(found)


def pruner(where: str, spec: PartitionSpec, options: ScanOptions) -> FilePruner:
    predicate = bind(where, SCHEMA)
    context = ScanContext("t", SCHEMA, predicate, {}, {0: spec}, None, FileIOConfig(), options)
    metadata = TableMetadata.__new__(TableMetadata)
    object.__setattr__(metadata, "schemas", {SCHEMA.schema_id: SCHEMA})
    object.__setattr__(metadata, "specs", {0: spec})
    return FilePruner(metadata, context)


@num_examples
def test_files_pruned_together_are_those_pruned_one_by_one(num_examples: int) -> None:
    settings(_QUIET, max_examples=num_examples)(given(st.data(), predicates())(check_files))()


def check_files(data: st.DataObject, where: Sql) -> None:
    fields = data.draw(st.sampled_from(_SPECS))
    known = data.draw(st.lists(partitions(fields), min_size=1, max_size=3))
    columns = entry_columns(data.draw(st.lists(entries(len(known)), min_size=1, max_size=6)), known)
    options = ScanOptions()
    rows = np.arange(len(columns))
    one_by_one, together = PlanTrace(), PlanTrace()
    single, kept = pruner(where.spark, spec_of(fields), options), []
    for file in [file_at(columns, row) for row in rows.tolist()]:
        if (reason := single.reason_to_skip(file)) is None:
            kept.append(file.path)
        else:
            one_by_one.data_files[reason].add(file.path, num_bytes=file.file_size_bytes)
    found = pruner(where.spark, spec_of(fields), options).prune(ColumnPart(columns, rows), together)
    assert [found.file(i).path for i in range(len(found))] == kept
    assert together == one_by_one
    assert list(together.data_files) == list(one_by_one.data_files)


@num_examples
def test_key_bounds_of_columns_are_those_of_files(num_examples: int) -> None:
    cases = given(st.data(), st.sampled_from(sorted(_TYPES)), st.booleans())
    settings(_QUIET, max_examples=num_examples)(cases(check_key_bounds))()


def check_key_bounds(data: st.DataObject, field_id: int, nan_matters: bool) -> None:  # noqa: FBT001  drawn
    columns = entry_columns(data.draw(st.lists(entries(1), min_size=1, max_size=6)))
    files = [file_at(columns, row) for row in range(len(columns))]
    expected = key_bounds(files, field_id, _TYPES[field_id], nan_matters=nan_matters)
    found = key_bounds_of_columns(
        columns, np.arange(len(columns)), files.__getitem__, field_id, _TYPES[field_id], nan_matters=nan_matters
    )
    known = expected.known
    assert found.known.tolist() == known.tolist()
    assert found.lower[known].tolist() == expected.lower[known].tolist()
    assert found.upper[known].tolist() == expected.upper[known].tolist()
    assert found.may_have_null.tolist() == expected.may_have_null.tolist()


@pytest.mark.parametrize(
    "where",
    [
        "i < 5 and i >= 2",
        "i between 1 and 3 or l in (1, 2)",
        "not (i = 5) and i is not null",
        "s like 'ab%'",
        "s = 'abc' and s2 <> 'x'",
        "d > 1.5 and f <= 2",
        "dec >= 1.25",
        "dt = date '2020-01-15'",
        "ts between timestamp '2020-01-01' and timestamp '2020-02-01'",
        "b",
        "st.a = 1",
        "bin < X'00FF'",
    ],
)
def test_common_filters_need_no_look_at_single_files(where: str) -> None:
    plain = [{i: encode_bound(v, _TYPES[i]) for i, v in values.items()} for values in (_LOW, _HIGH)]
    columns = entry_columns([Entry(lower=plain[0], upper=plain[1]), Entry()])
    found = match_columns(bind(where, SCHEMA), columns, np.arange(2), {}, SCHEMA)
    assert not found.undecidable.any()


_LOW: dict[int, Any] = {1: 1, 2: 1, 3: 0.5, 4: 0.5, 5: Decimal("1.00"), 6: "aa", 7: 18_262, 8: 18_262 * _DAY}
_LOW |= {9: False, 11: 1, 18: "b", 20: b"a"}
_HIGH: dict[int, Any] = {1: 9, 2: 9, 3: 2.5, 4: 2.5, 5: Decimal("3.00"), 6: "zz", 7: 18_270, 8: 18_270 * _DAY}
_HIGH |= {9: True, 11: 5, 18: "c", 20: b"z"}


def test_a_bound_that_is_a_signalling_nan_is_unknown_without_a_warning() -> None:
    stored = bytes.fromhex("0100807f") + struct.pack("<f", 1.5)
    spans = Spans(np.frombuffer(stored, np.uint8), np.array([0, 4]), np.array([4, 4]))
    for name in ("float", "double"):
        assert _decoded(spans, PrimitiveType(name), pa.float64()).values.to_pylist() == [None, 1.5]


@pytest.mark.parametrize("value", [1.5, 1, Decimal("1.5"), float("nan")])
@pytest.mark.parametrize("name", ["int", "long", "date", "float", "double", "decimal"])
def test_a_constant_of_another_kind_than_the_column_has_no_place_in_it(name: str, value: Any) -> None:
    type_ = PrimitiveType(name, (38, 2)) if name == "decimal" else PrimitiveType(name)
    own = {"float": float, "double": float, "decimal": Decimal}.get(name, int)
    if isinstance(value, own):
        assert array_of([value, None], type_).to_pylist()[1] is None
    else:
        with pytest.raises(NoColumnError):
            array_of([value], type_)
