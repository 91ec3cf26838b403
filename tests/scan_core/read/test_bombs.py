"""Small files that become very large when decoded: read in pieces within the memory limit, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bombs import MIB, PARQUET_BOMBS, run_limited, write_avro, write_parquet
from tests.iceberg_json import Column
from tests.table_builder import TableBuilder

LIMIT = 128 * MIB
ALLOWANCE = 900 * MIB
_TYPES: dict[str, Any] = {
    "binary": "binary",
    "member": {"type": "struct", "fields": [{"id": 3, "name": "x", "required": False, "type": "string"}]},
    "list": {"type": "list", "element-id": 3, "element": "string", "element-required": False},
    "map": {
        "type": "map",
        "key-id": 3,
        "key": "string",
        "value-id": 4,
        "value": "string",
        "value-required": False,
    },
    "fixed": f"fixed[{MIB}]",
    "equal numbers": "int",
    "list of equal numbers": {"type": "list", "element-id": 3, "element": "int", "element-required": False},
}
_TYPES["one list"] = _TYPES["list"]
REFUSED = {"one list", "one large page", "list of equal numbers"}
IMPORTS = "import scan_core\nfrom scan_core import ScanOptions"
SCAN = "scan_core.open_table({path!r}).scan().with_options(ScanOptions(memory_limit_bytes={limit}, parallelism=1))"


def bomb_table(path: Path, name: str, *, as_delete: bool = False) -> tuple[Path, int]:
    """A table of one file that is a bomb, and how many rows that has."""
    column, options = PARQUET_BOMBS[name]()
    kind = _TYPES.get(name, "string")
    builder = TableBuilder(path, (Column(1, "id", "long"), Column(2, "v", kind)))
    small: dict[str, Any] = {"id": [1]} if not as_delete else {"v": ["a"]}
    file = builder.data(small) if not as_delete else builder.equality_delete(small, ids=[2])
    num_rows = write_parquet(file.local, column, options)
    file.record["record_count"], file.record["file_size_in_bytes"] = num_rows, file.local.stat().st_size
    for bounds in ("lower_bounds", "upper_bounds", "value_counts", "null_value_counts"):
        file.record[bounds] = []
    builder.commit(*([builder.data({"id": [1, 2], "v": ["b", "c"]})] if as_delete else []), file)
    names = [{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["v"]}]
    if isinstance(kind, dict):
        names[1]["fields"] = [
            {"field-id": 3, "names": ["x", "element", "key"]},
            *([{"field-id": 4, "names": ["value"]}] if name == "map" else []),
        ]
    mapping = json.dumps(names)
    builder.edit(
        lambda document: document.setdefault("properties", {}).update({"schema.name-mapping.default": mapping})
    )
    return builder.metadata_path, num_rows


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "text" else pytest.mark.slow) for n in PARQUET_BOMBS],
)
def test_a_scan_reads_or_refuses_a_bomb_within_its_limit(tmp_path: Path, name: str) -> None:
    path, num_rows = bomb_table(tmp_path / "t", name)
    scan = SCAN.format(path=str(path), limit=LIMIT)
    found, grown, seconds = run_limited(IMPORTS, f"sum(b.num_rows for b in {scan}.to_batches())", ALLOWANCE)
    if name in REFUSED:
        assert isinstance(found, str)
        assert found.startswith("MemoryLimitError: ")
        assert "raise memory_limit_bytes" in found
    else:
        assert found == num_rows
    assert grown < 3 * LIMIT
    assert seconds < 60


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text", "plain text"])
@pytest.mark.parametrize("limit", [LIMIT, 2048 * MIB])
def test_keys_of_a_bomb_are_read_in_parts_or_refused(tmp_path: Path, name: str, limit: int) -> None:
    path, _ = bomb_table(tmp_path / "t", name, as_delete=True)
    scan = SCAN.format(path=str(path), limit=limit)
    found, grown, _ = run_limited(IMPORTS, f"{scan}.count()", 3 * limit + 500 * MIB)
    assert found == 2 or (isinstance(found, str) and found.startswith("MemoryLimitError: "))
    assert grown < 2.5 * limit + 100 * MIB


@pytest.mark.slow
@pytest.mark.parametrize(
    "expression", ["{}.where(\"v || 'y' = 'z'\").count()", "{}.aggregate(('max', 'v'))", "{}.count()"]
)
@pytest.mark.parametrize("name", ["text", "member"])
def test_filters_and_aggregates_read_a_bomb_in_parts(tmp_path: Path, name: str, expression: str) -> None:
    path, num_rows = bomb_table(tmp_path / "t", name)
    if name == "member":
        expression = expression.replace("'v'", "'v.x'").replace("v ||", "v.x ||")
    scan = SCAN.format(path=str(path), limit=LIMIT)
    found, grown, _ = run_limited(IMPORTS, f"str({expression.format(scan)})[:40]", ALLOWANCE)
    assert found in {"0", str(num_rows), "x" * 40}
    assert grown < 3 * LIMIT


@pytest.mark.parametrize(
    ("codec", "count", "text"),
    [
        ("deflate", 700_000, ""),
        pytest.param("deflate", 600, "x" * MIB, marks=pytest.mark.slow),
        pytest.param("snappy", 400, "x" * MIB, marks=pytest.mark.slow),
        pytest.param("zstandard", 400, "x" * MIB, marks=pytest.mark.slow),
    ],
)
def test_an_avro_block_that_does_not_fit_is_refused(tmp_path: Path, codec: str, count: int, text: str) -> None:
    builder = TableBuilder(tmp_path, (Column(1, "id", "long"), Column(2, "v", "string")))
    file = builder.data({"id": [1], "v": ["a"]}, file_format="avro")
    write_avro(file.local, count, codec, text=text)
    file.record["record_count"], file.record["file_size_in_bytes"] = count, file.local.stat().st_size
    builder.commit(file)
    scan = SCAN.format(path=str(builder.metadata_path), limit=LIMIT)
    found, grown, seconds = run_limited(IMPORTS, f"sum(b.num_rows for b in {scan}.to_batches())", ALLOWANCE)
    assert found.startswith("MemoryLimitError: ")
    assert "raise memory_limit_bytes" in found
    assert grown < 2 * LIMIT
    assert seconds < 20
