"""`verify_table` finds a flipped bit in any file of ours, and in files of others what their formats let it find."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore import scan_core
from nevermore.checks.damage import Registered, Verification, verify_table
from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.bitmap_indexes import CatalogTarget, build_indexes
from nevermore.pipelines.iceberg.catalog import create_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.parquet_output import WriterOptions
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import write_deletes, write_rows
from nevermore.scan_core import ScanError
from nevermore.scan_core.bitmaps.column_index import _CHECKED
from nevermore.scan_core.deletes.indexes import DELETE_CACHE
from nevermore.scan_core.files.parquet.file_layout import FOOTERS
from nevermore.scan_core.io import cache
from tests.differential.test_flipped_bits import page_bytes
from tests.pipelines.project import Project
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

ROWS = 600
COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string"), Column(3, "x", "double")]
OURS = ("data", "delete", "statistics")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The metadata file of a table of our writers with every kind of file that they write."""
    project = Project(tmp_path_factory.mktemp("verify"))
    catalog = open_catalog(load(project.folder / "nevermore.yaml"))
    rows = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "word": pa.array([("north", "south", None)[i % 3] for i in range(ROWS)]),
            "x": pa.array([float("nan") if i % 50 == 0 else i * 0.5 for i in range(ROWS)]),
            "tags": pa.array([[i, i + 1][: i % 3] for i in range(ROWS)], pa.list_(pa.int32())),
        }
    )
    options = WriterOptions(page_rows=100, row_group_rows=300, bloom_filters=True)
    made = create_table(catalog, "shop.ours", iceberg_fields(rows.schema))
    delta = RowDelta(made, options=options)
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {})
    delta = RowDelta(catalog.load_table("shop.ours"), options=options)
    keys = pa.table({"id": pa.array(range(0, ROWS, 9), pa.int64())})
    files = write_deletes(keys, delta.target, delta.default_spec, [1])
    delta.commit([*files, *write_rows(rows.slice(0, 50), delta.target, delta.default_spec)], {})
    build_indexes(CatalogTarget(catalog.load_table("shop.ours")), ["word", "id"])
    return Path(catalog.load_table("shop.ours").metadata_location.removeprefix("file://"))


def verified(metadata: Path, **options: Any) -> Verification:
    cache.clear()
    DELETE_CACHE.clear()
    FOOTERS.clear()
    return verify_table(scan_core.open_table(metadata), **options)


def files_of(metadata: Path) -> dict[str, list[Path]]:
    table = metadata.parent.parent
    snapshot = scan_core.open_table(metadata).metadata.current_snapshot
    assert snapshot is not None
    assert snapshot.manifest_list is not None
    manifests = [p for p in (table / "metadata").glob("*.avro") if not p.name.startswith("snap-")]
    data = [p for p in (table / "data").rglob("*") if p.suffix in {".parquet", ".avro", ".orc"}]
    return {
        "data": sorted(p for p in data if "delete" not in p.name),
        "delete": sorted(p for p in data if "delete" in p.name),
        "manifest": sorted(manifests),
        "list": [Path(snapshot.manifest_list.removeprefix("file://"))],
        "statistics": sorted((table / "metadata").glob("*.puffin")),
        "vectors": sorted((table / "data").rglob("*.puffin")),
    }


@contextmanager
def flipped(path: Path, place: int, bit: int) -> Iterator[None]:
    data = path.read_bytes()
    changed = bytearray(data)
    changed[place] ^= 1 << bit
    path.write_bytes(changed)
    try:
        yield
    finally:
        path.write_bytes(data)


def protected(path: Path) -> Sequence[int]:
    """Places of bytes that a checksum covers, in files of ours: the bodies of Parquet's pages."""
    return (path.suffix == ".parquet" and page_bytes(path.read_bytes())) or range(path.stat().st_size)


def missed(metadata: Path, kind: str, number: int) -> list[tuple[str, int, int]]:
    """Flips that went unseen, of so many in files of a kind."""
    random = Random(kind)
    unseen = []
    for _ in range(number):
        path = random.choice(files_of(metadata)[kind])
        place, bit = random.choice(protected(path)), random.randrange(8)
        with flipped(path, place, bit):
            found = verified(metadata)
        if not any(Path(d.file.removeprefix("file://")).name == path.name for d in found.damage):
            unseen.append((path.name, place, bit))
    return unseen


def test_whole_table_of_ours_has_no_damage_and_says_what_no_checksum_covers(ours: Path) -> None:
    found = verified(ours)
    assert found.damage == []
    assert found.not_compared == set()
    parts = {f.kind: f.parts for f in found.unprotected}
    assert parts.keys() == {"metadata", "manifest list", "manifest", "data file", "delete file"}
    assert parts["data file"] == parts["delete file"] == ("footer, page headers, page index, Bloom filters",)
    assert found.files == {
        "metadata": 1,
        "manifest list": 1,
        "manifest": 3,
        "data file": 2,
        "delete file": 1,
        "statistics file": 1,
    }
    assert len(verified(ours, all_snapshots=True).snapshot_ids) == 2


@pytest.mark.parametrize("kind", OURS)
def test_flipped_bit_in_a_file_of_ours_is_found(ours: Path, kind: str) -> None:
    assert missed(ours, kind, 1) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", OURS)
def test_every_of_many_flipped_bits_in_files_of_ours_is_found(ours: Path, kind: str) -> None:
    assert missed(ours, kind, 300) == []


@pytest.mark.parametrize("page", [0, 1])
def test_a_page_header_that_cannot_be_read_is_named_by_its_number(tmp_path: Path, page: int) -> None:
    metadata = foreign_table(tmp_path, "parquet")
    (path,) = files_of(metadata)["data"]
    pq.write_table(pq.read_table(path), path, write_page_checksum=True, compression="none", use_dictionary=True)
    column = pq.read_metadata(path).row_group(0).column(2)
    place = (column.dictionary_page_offset, column.data_page_offset)[page]
    content = path.read_bytes()
    path.write_bytes(content[:place] + b"\0" + content[place + 1 :])
    found = [d for d in verified(metadata).damage if d.place.startswith("row group 0, column 'x'")]
    told = f"the page at {place} has no header, or one without sizes"
    assert [(d.place, d.problem) for d in found] == [(f"row group 0, column 'x', page {page}", told)]


def test_a_bitmap_index_without_columns_is_damage(ours: Path) -> None:
    path = files_of(ours)["statistics"][0]
    whole = path.read_bytes()
    begin, end = whole.index(b'{"blobs"'), whole.rindex(_CHECKED)
    head = re.sub(rb'"fields": ?\[\d+\]', lambda match: match[0][:-2] + b" ]", whole[begin:end])
    assert head != whole[begin:end]
    after = end + len(_CHECKED)
    try:
        path.write_bytes(whole[:begin] + head + whole[end:after] + f"{crc32(head):08x}".encode() + whole[after + 8 :])
        problems = [d.problem for d in verified(ours).damage]
    finally:
        path.write_bytes(whole)
    assert problems
    assert all("it states no column, no type of values, or no size of the directory" in text for text in problems)


def foreign_table(folder: Path, file_format: str) -> Path:
    table = TableBuilder(folder, COLUMNS, version=3 if file_format == "vectors" else 2)
    rows = {"id": list(range(80)), "name": ["n" * (i % 7) for i in range(80)], "x": [i * 1.5 for i in range(80)]}
    written = "parquet" if file_format == "vectors" else file_format
    data = table.data(rows, file_format=written)
    table.commit(data)
    if file_format == "vectors":
        table.commit(*table.deletion_vectors({data: [1, 5, 70]}))
    else:
        deletes = [table.position_delete([(data, 3), (data, 9)], file_format=written)]
        deletes.append(table.equality_delete({"id": [7, 8]}, ids=[1], file_format=written))
        table.commit(*deletes)
    return table.metadata_path


FOREIGN = ("parquet", "avro", "orc", "vectors")


@pytest.mark.parametrize("file_format", FOREIGN)
def test_whole_table_of_others_has_no_damage_and_its_files_without_checksums_are_named(
    tmp_path: Path, file_format: str
) -> None:
    found = verified(foreign_table(tmp_path, file_format))
    assert found.damage == []
    assert found.not_compared == set()
    assert {f.kind for f in found.unprotected} >= {"metadata", "manifest list", "manifest", "data file", "delete file"}
    assert all(f.parts for f in found.unprotected)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("file_format", FOREIGN)
def test_flips_in_files_of_others_never_end_in_anything_but_a_report(tmp_path: Path, file_format: str) -> None:
    metadata = foreign_table(tmp_path, file_format)
    rate: Counter[str] = Counter()
    for kind, paths in files_of(metadata).items():
        if paths:
            rate[kind] = 100 - len(missed(metadata, kind, 100))
    print(file_format, dict(rate))  # noqa: T201 - the share that is found is worth knowing
    assert rate["data"] > 0


@pytest.mark.slow
def test_flips_in_page_bodies_of_others_with_page_checksums_are_found(tmp_path: Path) -> None:
    metadata = foreign_table(tmp_path, "parquet")
    (path,) = files_of(metadata)["data"]
    rows = pq.read_table(path)
    pq.write_table(rows, path, write_page_checksum=True, compression="none", use_dictionary=False)
    footer = pq.read_metadata(path)
    begin = footer.row_group(0).column(2).data_page_offset + 120  # behind the header
    document = scan_core.open_table(metadata)
    assert document.scan().count() == 76
    for place in range(begin, begin + 200, 7):
        with flipped(path, place, 3):
            assert any("row group 0, column 'x', page 0" in d.place for d in verified(metadata).damage)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda f: f.record.update(record_count=81), "expected 81 rows by its manifest, found 80"),
        (lambda f: f.record.update(file_size_in_bytes=9), "expected 9 bytes"),
        (lambda f: f.record.update(null_value_counts=[{"key": 1, "value": 2}]), "expected 2 NULLs by its manifest"),
        (lambda f: f.record.update(nan_value_counts=[{"key": 3, "value": 1}]), "expected 1 NaNs by its manifest"),
        (
            lambda f: f.record.update(upper_bounds=[{"key": 1, "value": (50).to_bytes(8, "little")}]),
            "between 0 and 50 by its manifest; 29 of 80 rows contradict, such as id = 51",
        ),
    ],
)
def test_what_a_manifest_says_wrongly_is_damage(tmp_path: Path, change: Callable[[Any], Any], told: str) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    data = table.data({"id": list(range(80)), "name": ["n"] * 80, "x": [1.0] * 80})
    change(data)
    table.commit(data)
    assert told in " ".join(d.problem for d in verified(table.metadata_path).damage)


def test_deleted_position_beyond_its_data_file_is_damage(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=3)
    data = [table.data({"id": [i], "name": ["n"], "x": [1.0]}) for i in range(2)]
    table.commit(*data)
    table.commit(table.position_delete([(data[0], 4)]), *table.deletion_vectors({data[1]: [7]}))
    told = " ".join(d.problem for d in verified(table.metadata_path).damage)
    assert "deletes row 4 of" in told
    assert f"deletes row 7 of {data[1].path}, which has 1 row" in told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d.update({"table-uuid": "x"}), "expected a UUID, found 'x'"),
        (lambda d: d.update({"last-sequence-number": 0}), "expected a sequence number up to 0"),
        (lambda d: d["refs"].update({"old": {"snapshot-id": 5, "type": "tag"}}), "expected a snapshot of the table"),
        (lambda d: d["snapshots"].append(d["snapshots"][0]), "an id occurs twice"),
        (lambda d: d.update({"last-updated-ms": 5}), "expected a time up to last-updated-ms 5"),
        (lambda d: d.update({"last-column-id": 1}), "expected 3 or more, found 1"),
        (lambda d: d["refs"]["main"].update({"snapshot-id": 5}), "expected 5 as in refs"),
        (lambda d: d["snapshots"][0].update({"sequence-number": 9}), "up to 1, found 9"),
        (lambda d: d["snapshots"][0].update({"schema-id": 9}), "expected a schema of the table"),
        (lambda d: d["snapshot-log"].append({"snapshot-id": 5, "timestamp-ms": 5}), "to be its last entry, found 5"),
    ],
)
def test_metadata_that_contradicts_itself_is_damage(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], told: str
) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    table.commit(table.data({"id": [1], "name": ["n"], "x": [1.0]}))
    document = table.document()
    change(document)
    table.metadata_path.write_text(json.dumps(document))
    found = " ".join(d.problem for d in verified(table.metadata_path).damage)
    assert told in found


def test_snapshot_that_contradicts_its_manifest_list_is_damage(ours: Path) -> None:
    original = ours.read_text()
    document = json.loads(original)
    document["snapshots"][-1]["sequence-number"] = 1
    ours.write_text(json.dumps(document))
    try:
        damage, *_ = verified(ours).damage
    finally:
        ours.write_text(original)
    assert damage.problem == "expected sequence-number 1 by the table's metadata, found 2"


def test_metadata_other_than_the_catalog_says_is_damage(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    found = verified(table.metadata_path, registered=Registered("another", 1))
    assert [d.place for d in found.damage] == ["table-uuid", "last-updated-ms"]


@pytest.mark.slow
def test_flips_in_metadata_are_found_or_harmless_to_the_program(tmp_path: Path) -> None:
    metadata = foreign_table(tmp_path, "parquet")
    random, found = Random(3), Counter[str]()
    for _ in range(300):
        with flipped(metadata, random.randrange(metadata.stat().st_size), random.randrange(8)):
            try:
                found["found" if verified(metadata).damage else "unseen"] += 1
            except ScanError:
                found["refused"] += 1
    print(dict(found))  # noqa: T201 - as documented
    assert found["refused"] > found["unseen"] > 0
