"""Which engines read a table right: the rules of docs/compatibility.md, applied to its metadata and manifests."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.metadata.manifest_list import DATA_MANIFEST, snapshot_manifests
from nevermore.scan_core.metadata.manifests import read_data_manifests, read_delete_manifests
from nevermore.scan_core.model.snapshot import DeleteContent, FileFormat
from nevermore.scan_core.model.table_metadata import TableMetadata

WRONG, MAYBE, REFUSES, UNTRIED, RIGHT = "wrong rows", "wrong rows possible", "refuses", "not tried", "right"
SPARK, JAVA = "Spark 4.1 with Iceberg 1.12", "Iceberg Java 1.12 (Flink, Trino)"
ENGINES = (
    *("scan_core", SPARK, JAVA, "PyIceberg 0.12", "Polars 2.1", "Daft 0.7", "DuckDB iceberg 1.5", "ClickHouse 26.9"),
    "Sail 0.7",
)
CONVERT, COMPACT = "convert", "compact --all"
_RULES: tuple[tuple[str, str, tuple[str, ...], str, str], ...] = (
    ("nanoseconds", REFUSES, (SPARK,), "no timestamps in nanoseconds", ""),
    ("equality deletes", REFUSES, ("PyIceberg 0.12", "Polars 2.1", "Daft 0.7"), "no equality deletes", CONVERT),
    ("NULL in partitions", REFUSES, ("DuckDB iceberg 1.5",), "stops at deletes in a partition of NULL", CONVERT),
    ("deletion vectors", REFUSES, ("Daft 0.7", "ClickHouse 26.9"), "no deletion vectors", COMPACT),
    ("keys of dropped columns", REFUSES, (JAVA,), "fails on deletes by a column that was dropped", CONVERT),
    ("global deletes", WRONG, ("ClickHouse 26.9",), "ignores deletes of an unpartitioned spec", CONVERT),
    ("fixed keys", WRONG, (SPARK, JAVA), "loses the keys of Parquet files", CONVERT),
    ("uuid keys", MAYBE, (SPARK, JAVA), "compares bounds as signed numbers, and may skip a delete file", CONVERT),
    ("promoted keys", MAYBE, (SPARK, JAVA), "may miss deletes from before the type was widened", CONVERT),
    ("bounds of other columns", MAYBE, (SPARK,), "conditions on other columns may skip a delete file", CONVERT),
    ("other formats than Parquet", UNTRIED, ENGINES[3:], "was tried with Parquet files only", ""),
)
"""(what a table has, what that means, for which engines, why, the command that mends it); of several the first counts."""


@dataclass(frozen=True, slots=True)
class Reader:
    """What an engine makes of a table.

    Attributes:
        engine: name and version with which the rules were observed.
        verdict: `right`, `refuses`, `wrong rows` (deleted rows return), `wrong rows possible`, or `not tried`.
        why: the rule, and a file to which it applies.
        mend: the command of nevermore after which the engine reads the table right; empty if none is needed or known.
    """

    engine: str
    verdict: str
    why: str = ""
    mend: str = ""


def readers_of(metadata: TableMetadata, io: FileIOConfig) -> Iterator[Reader]:
    """What each engine makes of the current snapshot of a table.

    Raises:
        ScanError: a manifest cannot be read.
    """
    found = _features(metadata, io)
    for engine in ENGINES:
        rules = [rule for rule in _RULES if rule[0] in found and engine in rule[2]]
        if not rules:
            yield Reader(engine, RIGHT)
            continue
        feature, verdict, _, why, mend = rules[0]
        yield Reader(engine, verdict, f"{why}: {found[feature].rpartition('/')[2]}", mend)
    yield from (Reader(engine, UNTRIED) for engine in ("StarRocks", "Doris"))


def _features(metadata: TableMetadata, io: FileIOConfig) -> Mapping[str, str]:
    """What of the rules the table has, each with a file that has it."""
    snapshot = metadata.current_snapshot
    manifests = () if snapshot is None else snapshot_manifests(snapshot, io)
    of_data = [m for m in manifests if m.content == DATA_MANIFEST]
    data = [*chain(*read_data_manifests(of_data, metadata, io))]
    deletes = [*chain(*read_delete_manifests([m for m in manifests if m not in of_data], metadata, io))]
    is_partitioned = any(not metadata.specs[file.spec_id].is_unpartitioned for file in data)
    nanoseconds = [field.name for field in metadata.schema.fields if str(field.type).endswith("_ns")]
    found = {"nanoseconds": nanoseconds[0]} if nanoseconds else {}
    for file in (*data, *deletes):
        if file.format is FileFormat.PUFFIN:
            found.setdefault("deletion vectors", file.path)
        elif file.format is not FileFormat.PARQUET:
            found.setdefault("other formats than Parquet", file.path)
    for file in deletes:
        if file.content is not DeleteContent.EQUALITY:
            continue
        keys = [{s.field(i).type for s in metadata.schemas.values() if i in s} for i in file.equality_ids]
        names = {getattr(kind, "name", "") for kinds in keys for kind in kinds}
        has = {
            "equality deletes": True,
            "global deletes": is_partitioned and metadata.specs[file.spec_id].is_unpartitioned,
            "NULL in partitions": None in file.partition,
            "uuid keys": "uuid" in names,
            "fixed keys": "fixed" in names,
            "promoted keys": any(len(kinds) > 1 for kinds in keys),
            "keys of dropped columns": any(i not in metadata.schema for i in file.equality_ids),
            "bounds of other columns": not set(file.lower_bounds) <= {*file.equality_ids},
        }
        found |= {feature: file.path for feature, there in has.items() if there and feature not in found}
    return found
