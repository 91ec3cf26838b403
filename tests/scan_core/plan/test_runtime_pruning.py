"""No partition, and no manifest, of a row whose column is a key is left out for the keys of a runtime filter."""

import random
from typing import Any

import pyarrow as pa
import pytest

from nevermore.scan_core.joins.key_set import KeyField, KeySet, as_column_values, build_lookup
from nevermore.scan_core.metadata.manifest_list import PartitionSummary
from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.model.schema import NestedField, PrimitiveType, Schema, arrow_type, parse_type
from nevermore.scan_core.model.snapshot import PartitionField, PartitionSpec
from nevermore.scan_core.model.transforms import normalise_value, parse_transform
from nevermore.scan_core.prune.partitions import manifest_domains, partition_domains
from nevermore.scan_core.prune.verdicts import Domain
from tests.support.bound_bytes import encode_bound

TIMES = ("year", "month", "day", "hour")
NUMBERS = [-(2**31), *range(-40, 40, 3), 2**31 - 1]
STEPS = range(-9 * 10**9, 3 * 10**11, 7 * 10**9 + 1)
CASES: dict[str, tuple[list[Any], tuple[str, ...]]] = {
    "int": (NUMBERS, ("identity", "bucket[3]", "truncate[10]", "void")),
    "long": ([-(2**63), *NUMBERS, 2**63 - 1], ("identity", "bucket[3]", "truncate[7]")),
    "string": (["", "a", "aa", "ab" * 20, "ab" * 20 + "c", "ÿ", "z" * 40], ("identity", "bucket[2]", "truncate[3]")),
    "date": (list(range(-60, 60, 7)), ("identity", "bucket[2]", *TIMES[:3])),
    "timestamp": (list(STEPS), ("identity", "bucket[2]", *TIMES)),
    "binary": ([b"", b"\0", b"ab", b"\xff\xff"], ("identity", "bucket[2]", "truncate[1]")),
    "double": ([-1.5, -0.0, 0.0, 1e300, float("nan"), float("inf")], ("identity",)),
    "boolean": ([True, False], ("identity",)),
}


def canonical(values: pa.Array, result: PrimitiveType) -> list[Any]:
    is_number = pa.types.is_temporal(values.type)
    return [None if not v.is_valid else normalise_value(v.value if is_number else v.as_py(), result) for v in values]


@pytest.mark.each(3)
@pytest.mark.parametrize(("kind", "transform"), [(kind, t) for kind, (_, all_) in CASES.items() for t in all_])
def test_what_holds_a_key_is_kept(kind: str, transform: str) -> None:
    drawn, type_, pool = random.Random(3), parse_type(kind), CASES[kind][0]
    target, parsed = arrow_type(type_), parse_transform(transform)
    assert isinstance(type_, PrimitiveType)
    result = parsed.result_type(type_)
    assert isinstance(result, PrimitiveType)
    schema = Schema(0, (NestedField(1, "c", type_, required=False),))
    spec = PartitionSpec(1, (PartitionField(1000, 1, "p", transform),))

    def column(values: list[Any]) -> pa.Array:
        if not pa.types.is_temporal(target):
            return pa.array(values, target)
        return pa.array(values, pa.int32() if target.bit_width == 32 else pa.int64()).view(target)

    excluded = 0
    for _ in range(40):
        rows, keys = (drawn.sample(pool, drawn.randint(1, min(3, len(pool)))) for _ in range(2))
        wanted = as_column_values(column(keys), "c", type_).unique()
        (found,) = build_lookup(KeySet((KeyField(1, "c", type_),), (wanted,)), ScanOptions()).columns
        of_keys, partitions = (canonical(parsed.apply(a, type_), result) for a in (wanted, column(rows)))

        def holds(domains: dict[int, Domain]) -> bool:
            return 1 not in domains or found.meets(domains[1])  # noqa: B023

        held = {p: holds(partition_domains(spec, (p,), schema)) for p in partitions}
        assert all(is_held for p, is_held in held.items() if p is not None and p in of_keys), (rows, keys)
        excluded += not all(held.values())
        known = [p for p in partitions if p is not None and p == p]  # noqa: PLR0124
        if known and result.name not in {"double", "float"}:
            ends = (encode_bound(end, result) for end in (min(known), max(known)))
            summary = PartitionSummary(len(known) < len(partitions), None, *ends)
            assert holds(manifest_domains(spec, (summary,), schema)) or not set(known) & set(of_keys), (rows, keys)
    assert excluded or transform == "void"
