"""Small files that become very large when decoded: read in pieces within the memory limit, or refused by name."""

import json
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.orc as po
import pyarrow.parquet as pq
import pytest

from nevermore.scan_core import ScanOptions
from nevermore.scan_core.columns.file_reader import DecodingLimits
from nevermore.scan_core.deletes.filter import read_position_deletes
from nevermore.scan_core.files.orc import open_orc
from nevermore.scan_core.files.parquet.file_layout import read_layout
from nevermore.scan_core.files.parquet.reader import ParquetFileReader, open_parquet
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.io.remote import ByteRanges
from nevermore.scan_core.model.errors import MalformedTableError, MemoryLimitError
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.model.snapshot import DeleteContent, FileFormat
from nevermore.scan_core.rows.selection import All, from_ranges
from tests.scan_core.deletes.files import delete_file
from tests.support.bombs import (
    MIB,
    ORC_BOMBS,
    PARQUET_BOMBS,
    repeated,
    run_limited,
    write_avro,
    write_orc_bomb,
    write_parquet,
)
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

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
_TYPES["one list"] = _TYPES["list of shared prefixes"] = _TYPES["list"]
REFUSED = {"one list", "one large page", "list of equal numbers"}
# LLVM's loader takes 50 MB of a process, whatever is read.
IMPORTS = (
    "from nevermore import scan_core\nfrom nevermore.scan_core import ScanOptions\n"
    "from nevermore.scan_core.native.compiled import stored_kernels\nstored_kernels()"
)
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
    # Arrow reserves addresses for 1,024 values of a fixed size, and uses few of them.
    allowance = ALLOWANCE + (400 * MIB if name == "fixed" else 0)
    found, grown, seconds = run_limited(IMPORTS, f"sum(b.num_rows for b in {scan}.to_batches())", allowance)
    if name in REFUSED:
        assert isinstance(found, str)
        assert found.startswith("MemoryLimitError: ")
        assert "raise memory_limit_bytes" in found
    else:
        assert found == num_rows
    # one list or map at a time is in memory, so that the allocator decides: the system's kept 70 to 100 MB of large blocks
    assert grown < (1.75 if name in {"list", "map"} else 2) * LIMIT
    assert seconds < 60


def test_values_that_repeat_stay_in_their_dictionary(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", repeated(400, 4 * MIB), {})
    source = ByteRanges(pa.OSFile(str(tmp_path / "a.parquet")))
    with closing(ParquetFileReader("a.parquet", source, read_layout(source, "a.parquet"))) as reader:
        (group,) = reader.row_groups
        windows = reader.windows(group, [1], range(400), DecodingLimits(64 * MIB, 64 * MIB))
        assert windows is not None
        assert len(windows) > 20
        for window in windows:
            (values,) = reader.read(group, [1], All(len(window)), window)
            assert pa.types.is_dictionary(values.type)
            assert values.cast(pa.string())[0].as_py() == "x" * 4 * MIB


@pytest.mark.parametrize(("size", "is_small"), [(1_000, True), (1_000_000, True), (4_000_000, False)])
@pytest.mark.parametrize("name", ["text", "list", "map"])
def test_small_buffers_of_lists_alone_are_taken_from_the_system(
    tmp_path: Path,
    name: str,
    size: int,
    is_small: bool,  # noqa: FBT001
) -> None:
    texts = pa.array(["x" * size, "y" * size])
    column = {
        "text": texts,
        "list": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), texts),
        "map": pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["a", "b"]), texts),
    }[name]
    write_parquet(tmp_path / "a.parquet", column, {})
    source = ByteRanges(pa.OSFile(str(tmp_path / "a.parquet")))
    layout = read_layout(source, "a.parquet")
    with closing(ParquetFileReader("a.parquet", source, layout)) as reader:
        (group,) = reader.row_groups
        reader.windows(group, [1], range(2), DecodingLimits(MIB, 64 * MIB))
        reader.read(group, [1], All(2), range(2))  # looks at the headers of pages
        assert layout.suits_system_memory(0, layout.columns.leaves[1]) == (is_small and name != "text")


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_what_prefixes_become_is_told_before_they_are_decoded(tmp_path: Path, version: str) -> None:
    """Values of 20 kB that are written once, beside those of every shape of levels."""
    rows, text = 2_000, ["x" * 20_000, None, "x" * 19_999 + "y", ""]
    texts = pa.array(text * (rows // 4))
    nested = [[["x" * 5_000, None], None, []], None, [], [["x" * 5_000]]] * (rows // 4)
    table = pa.table(
        {
            "v": texts,
            "member": pa.StructArray.from_arrays([texts], ["x"]),
            "lists": pa.array(nested, pa.list_(pa.list_(pa.string()))),
            "maps": pa.array([[("k" * 9_000 + str(i), "x")] for i in range(rows)], pa.map_(pa.string(), pa.string())),
        }
    )
    file = tmp_path / "a.parquet"
    names = ("v", "member.x", "lists.list.element.list.element", "maps.key_value.key", "maps.key_value.value")
    pq.write_table(
        table,
        file,
        use_dictionary=False,
        data_page_version=version,
        compression="zstd",
        column_encoding=dict.fromkeys(names, "DELTA_BYTE_ARRAY"),
    )
    reader = open_parquet(str(file), FileIOConfig())
    (group,) = reader.row_groups
    for column, longest in enumerate([19_999, 19_999, 5_000, 9_000]):
        found = reader.windows(group, [column], range(rows), DecodingLimits(MIB, 8 * MIB))
        assert found is not None
        assert [row for window in found for row in window] == list(range(rows))
        assert max(map(len, found)) * longest <= 8 * MIB
        parts = [reader.read(group, [column], from_ranges([(w.start, w.stop)], rows), w)[0].to_pylist() for w in found]
        assert [value for part in parts for value in part] == table.column(column).to_pylist()
    reader.close()


@pytest.mark.parametrize("limit", [pytest.param(64 * 1024, marks=pytest.mark.slow), 16 * MIB])
def test_position_deletes_are_read_in_parts_or_refused(tmp_path: Path, limit: int) -> None:
    rows, text = 20_000, "file:/" + "x" * 10_000
    paths = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))
    table = pa.table({"file_path": paths, "pos": np.arange(rows)})
    pq.write_table(table, tmp_path / "pos.parquet", compression="zstd", store_schema=False)
    file = delete_file(tmp_path / "pos.parquet", FileFormat.PARQUET, content=DeleteContent.POSITION)
    options = ScanOptions(memory_limit_bytes=limit, parallelism=1)
    if limit == 64 * 1024:
        with pytest.raises(
            MemoryLimitError, match=r"pos\.parquet: row group 0: its 20000 rows .* raise memory_limit_bytes"
        ):
            read_position_deletes(file, FileIOConfig(), ScanMetrics(), options)
        return
    found = read_position_deletes(file, FileIOConfig(), ScanMetrics(), options)
    assert found.by_path[text].values.tolist() == list(range(rows))


@pytest.mark.slow
def test_very_many_position_deletes_of_a_long_path_are_refused(tmp_path: Path) -> None:
    rows, path = 20_000_000, tmp_path / "pos.parquet"
    paths = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * MIB]))
    pq.write_table(
        pa.table({"file_path": paths, "pos": np.zeros(rows, np.int64)}), path, compression="zstd", store_schema=False
    )
    imports = (
        "from tests.scan_core.deletes.files import delete_file\nfrom nevermore.scan_core.split.tasks import FileIOConfig\n"
        "from nevermore.scan_core.deletes.filter import read_position_deletes\nfrom nevermore.scan_core.model.options import ScanMetrics\n"
        "from nevermore.scan_core import ScanOptions\nfrom nevermore.scan_core.model.snapshot import DeleteContent, FileFormat\nfrom pathlib import Path"
    )
    expression = (
        f"list(read_position_deletes(delete_file(Path({str(path)!r}), FileFormat.PARQUET, content=DeleteContent.POSITION), FileIOConfig(), "
        f"ScanMetrics(), ScanOptions(memory_limit_bytes={LIMIT}, parallelism=1)).by_path.values())[0].values.tolist()"
    )
    found, grown, seconds = run_limited(imports, expression, ALLOWANCE)
    assert found.startswith("MemoryLimitError: ")
    assert found.endswith("raise memory_limit_bytes")
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
    assert found in {"0", str(num_rows), f"('{'x' * 38}"}
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


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "list" else pytest.mark.slow) for n in ORC_BOMBS if "list of" not in n]
)
def test_an_orc_stripe_that_does_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    kind = {"equal numbers": "long", "list": _TYPES["list"]}.get(name, "string")
    builder = TableBuilder(tmp_path, (Column(1, "id", "long"), Column(2, "v", kind)))
    file = builder.data({"id": [1]}, file_format="orc")
    num_rows = write_orc_bomb(file.local, name)
    file.record["record_count"], file.record["file_size_in_bytes"] = num_rows, file.local.stat().st_size
    for bounds in ("lower_bounds", "upper_bounds", "value_counts", "null_value_counts"):
        file.record[bounds] = []
    builder.commit(file)
    mapping: list[dict[str, Any]] = [{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["v"]}]
    if name == "list":
        mapping[1]["fields"] = [{"field-id": 3, "names": ["element"]}]
    properties = {"schema.name-mapping.default": json.dumps(mapping)}
    builder.edit(lambda document: document.setdefault("properties", {}).update(properties))
    scan = SCAN.format(path=str(builder.metadata_path), limit=LIMIT)
    found, grown, seconds = run_limited(IMPORTS, f"sum(b.num_rows for b in {scan}.to_batches())", ALLOWANCE)
    assert found.startswith("MemoryLimitError: ")
    assert "raise memory_limit_bytes" in found
    assert grown < LIMIT
    assert seconds < 20


@pytest.mark.parametrize("is_dictionary", [True, False])
def test_lengths_in_an_orc_file_that_lie_are_counted_before_they_are_believed(
    tmp_path: Path,
    is_dictionary: bool,  # noqa: FBT001
) -> None:
    file, limits = tmp_path / "a.orc", DecodingLimits(MIB, 8 * MIB)
    texts = [f"{i}" + "x" * (2 * MIB - 1) for i in range(4)]
    table = pa.table({"v": texts * (20 if is_dictionary else 1)})
    po.write_table(
        table, file, compression="uncompressed", dictionary_key_size_threshold=float(is_dictionary), stripe_size=1 << 40
    )
    if is_dictionary:
        with closing(open_orc(str(file), FileIOConfig())) as reader:
            assert reader.windows(reader.row_groups[0], [0], range(80), limits) is None
            with pytest.raises(MemoryLimitError, match=r"'v'"):
                reader.read(reader.row_groups[0], [0], All(80))
        return
    with closing(open_orc(str(file), FileIOConfig())) as reader:
        assert reader.windows(reader.row_groups[0], [0], range(4), limits) is None
    data, lengths = file.read_bytes(), b"\x11\x20\x00\x00"  # four times 2 MiB
    assert data.count(lengths) == 1
    file.write_bytes(data.replace(lengths, b"\x11\xff\xff\xff"))
    with closing(open_orc(str(file), FileIOConfig())) as reader:
        assert reader.windows(reader.row_groups[0], [0], range(4), limits) is None
        with pytest.raises(MemoryLimitError, match=r"a\.orc: stripe"):
            reader.read(reader.row_groups[0], [0], All(4))


@pytest.mark.parametrize(
    ("codec", "version"),
    [
        *((codec, "0.12") for codec in ("uncompressed", "zlib", "snappy", "lz4", "zstd")),
        ("zlib", "0.11"),
        *(pytest.param(codec, "0.11", marks=pytest.mark.slow) for codec in ("uncompressed", "snappy", "lz4", "zstd")),
    ],
)
def test_the_bound_of_an_orc_stripe_is_near_to_what_it_becomes(tmp_path: Path, codec: str, version: str) -> None:
    rows, file = 20_000, tmp_path / "a.orc"
    draw = np.random.default_rng(5)
    texts = ["" if n == 3 else None if n == 5 else "y" * int(n) for n in draw.integers(0, 40, rows)]
    table = pa.table(
        {
            "few": [f"value {n}" for n in draw.integers(0, 50, rows)],
            "texts": texts,
            "lists": [[t, "z"] if t else None for t in texts],
            "maps": pa.array([[(str(i), 1.5)] * (i % 3) for i in range(rows)], pa.map_(pa.string(), pa.float64())),
            "structs": [None if i % 7 == 0 else {"a": i, "b": texts[i]} for i in range(rows)],
            "lengths": ["x" * (i // 100) for i in range(rows)],
        }
    )
    po.write_table(table, file, compression=codec, file_version=version, dictionary_key_size_threshold=0.5)
    with closing(open_orc(str(file), FileIOConfig())) as reader:
        (group,) = reader.row_groups
        for column in range(table.num_columns):
            (found,) = reader.read(group, [column], All(rows))
            assert found.equals(table.column(column).combine_chunks())
            size = table.column(column).combine_chunks().nbytes
            for twentieths in (9, 12):
                with closing(open_orc(str(file), FileIOConfig())) as limited:
                    limits = DecodingLimits(1, size * twentieths // 20)
                    assert limited.windows(group, [column], range(rows), limits) is None
                    with nullcontext() if twentieths == 12 else pytest.raises(MemoryLimitError):
                        limited.read(group, [column], All(rows))


@pytest.mark.parametrize("stated", [True, False])
def test_dictionaries_are_bounded_by_the_pages_whatever_the_footer_states(tmp_path: Path, stated: bool) -> None:  # noqa: FBT001
    """The encodings of a footer may leave out that of its pages."""
    file = tmp_path / "a.parquet"
    num_rows = write_parquet(file, pa.array(["x" * MIB] * 64), {"compression": "none"})
    data = file.read_bytes()
    encodings = b"\x19\x35\x00\x06\x10"  # PLAIN, RLE, RLE_DICTIONARY
    begin = data.rindex(encodings)
    if not stated:
        file.write_bytes(data[:begin] + b"\x19\x35\x00\x06\x06" + data[begin + len(encodings) :])
    reader = open_parquet(str(file), FileIOConfig())
    (group,) = reader.row_groups
    found = reader.windows(group, [1], range(num_rows), DecodingLimits(MIB, 8 * MIB))
    assert found is not None
    assert max(map(len, found)) <= 8
    reader.close()


def write_column(file: Path, column: pa.Array, **options: Any) -> None:
    """A file of one column `v` with a page index, and without Arrow's schema."""
    pq.write_table(pa.table({"v": column}), file, write_page_index=True, store_schema=False, **options)


@pytest.mark.parametrize("way", ["whole", "window", "few rows", "few rows of a window"])
@pytest.mark.parametrize("kind", ["long", "text"])
@pytest.mark.parametrize("is_large", [True, False])
def test_pages_are_compared_with_the_footer_before_they_are_decoded(
    tmp_path: Path,
    way: str,
    kind: str,
    is_large: bool,  # noqa: FBT001
) -> None:
    """Pages of 160 kB are too large, or the footer states 100 kB for all: each way to read looks at what it decodes."""
    file, rows = tmp_path / "a.parquet", 1_000_000
    column = pa.array(np.zeros(rows, np.int64)) if kind == "long" else pa.array(["xxxx"] * rows)
    write_column(file, column, compression="zstd", use_dictionary=False)
    size = pq.ParquetFile(file).metadata.row_group(0).column(0).total_uncompressed_size
    if not is_large:
        data, (stated, lie) = file.read_bytes(), (_varint_of_four_bytes(2 * number) for number in (size, 100_000))
        place = data.rindex(b"\x16" + stated, 0, data.rindex(b"\x16" + stated))  # the other one is the row group's
        file.write_bytes(data[: place + 1] + lie + data[place + 5 :])
    limits = DecodingLimits(MIB if "window" in way else 64 * MIB, MIB // 16 if is_large else 8 * MIB)
    few, window = from_ranges([(10, 20), (300_000, 300_010)], rows), range(rows // 2)
    error, match = (MemoryLimitError, "a page of") if is_large else (MalformedTableError, "the footer states 100000")
    with closing(open_parquet(str(file), FileIOConfig())) as reader:
        (group,) = reader.row_groups
        reader.windows(group, [0], range(rows), limits)
        read = {
            "whole": lambda: reader.read(group, [0], All(rows)),
            "window": lambda: reader.read(group, [0], from_ranges([(0, rows // 2)], rows), window),
            "few rows": lambda: reader.read(group, [0], few),
            "few rows of a window": lambda: reader.read(group, [0], few, window),
        }
        with pytest.raises(error, match=match):
            read[way]()


def _varint_of_four_bytes(number: int) -> bytes:
    return bytes([*((number >> shift) & 0x7F | 0x80 for shift in (0, 7, 14)), number >> 21])


@pytest.mark.parametrize("way", ["whole", "window", "few rows"])
def test_a_footer_that_omits_shared_prefixes_is_refused(tmp_path: Path, way: str) -> None:
    """Texts of 64 KiB that share all but their ends come out of a chunk that is hardly larger than one of them."""
    file, rows = tmp_path / "a.parquet", 2_000
    column = pa.array(["x" * (MIB // 16) + str(row) for row in range(rows)])
    encoded = {"use_dictionary": False, "column_encoding": {"v": "DELTA_BYTE_ARRAY"}, "compression": "none"}
    write_column(file, column, **encoded)
    data, encodings = file.read_bytes(), b"\x19\x25\x06\x0e"  # RLE, DELTA_BYTE_ARRAY
    begin = data.rindex(encodings)
    file.write_bytes(data[:begin] + b"\x19\x25\x06\x00" + data[begin + len(encodings) :])
    with closing(open_parquet(str(file), FileIOConfig())) as reader:
        (group,) = reader.row_groups
        reader.windows(group, [0], range(rows), DecodingLimits(MIB, 64 * MIB))
        read = {
            "whole": lambda: reader.read(group, [0], All(rows)),
            "window": lambda: reader.read(group, [0], from_ranges([(0, 10)], rows), range(20)),
            "few rows": lambda: reader.read(group, [0], from_ranges([(10, 12)], rows)),
        }
        with pytest.raises(MalformedTableError, match="which the footer omits"):
            read[way]()


@pytest.mark.each(3)
@pytest.mark.parametrize("rows", ["whole", "pages"])
@pytest.mark.parametrize("limit", [MIB, 512 * MIB])
def test_a_footer_on_an_object_store_that_omits_the_dictionary_is_refused(
    tmp_path: Path, rows: str, limit: int
) -> None:
    """A chunk of a few kilobytes, that 20,000 times one value of 1 MiB come out of."""
    file = tmp_path / "a.parquet"
    column = repeated(20_000, MIB)
    write_column(file, column, compression="zstd", data_page_size=1_000)
    data, encodings = file.read_bytes(), b"\x19\x35\x00\x06\x10"  # PLAIN, RLE, RLE_DICTIONARY
    begin = data.rindex(encodings)
    file.write_bytes(data[:begin] + b"\x19\x35\x00\x06\x06" + data[begin + len(encodings) :])
    code = (
        "import pyarrow as pa\nfrom nevermore.scan_core.files.parquet.reader import ParquetFileReader\n"
        "from nevermore.scan_core.files.parquet.file_layout import read_layout\nfrom nevermore.scan_core.io.remote import RemoteFile\n"
        "from nevermore.scan_core.columns.file_reader import DecodingLimits\nfrom nevermore.scan_core.rows.selection import All, from_ranges\n"
        "from nevermore.scan_core.io.object_store import ArrowObject\n"
        f"source = RemoteFile(ArrowObject(pa.OSFile({str(file)!r})))\n"
        f"reader = ParquetFileReader('a.parquet', source, read_layout(source, 'a.parquet'))\n"
        "(group,) = reader.row_groups\n"
        f"windows = reader.windows(group, [0], range(20_000), DecodingLimits({limit // 16}, {limit}))\n"
    )
    selection = "All(20_000)" if rows == "whole" else "from_ranges([(100, 5_000)], 20_000)"
    found, grown, _ = run_limited(code, f"len(reader.read(group, [0], {selection}))", ALLOWANCE)
    assert "which the footer omits" in str(found)
    assert grown < 100 * MIB
