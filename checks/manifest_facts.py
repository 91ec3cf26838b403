"""Compares what manifests state about files with the files. Planning relies on it: a wrong statement loses or adds rows.

Partition values, bounds and counts of NULLs are claims about the rows of a file, whose columns are read in batches that fit
into memory.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nevermore.checks.subject import Subject
from nevermore.pipelines.iceberg.row_shape import python_rows
from nevermore.pipelines.publish.audit import CheckResult
from nevermore.pipelines.wording import counted
from nevermore.scan_core import (
    ContentFile,
    Damage,
    DataFile,
    DeleteContent,
    DeleteFile,
    FileScanTask,
    MalformedTableError,
    MemoryLimitError,
    NestedField,
    PartitionSpec,
    PrimitiveType,
    ScanContext,
    ScanError,
    ScanMetrics,
    ScanOptions,
    Schema,
    Snapshot,
    Split,
    StructType,
    Table,
    TableMetadata,
    UnsupportedError,
    read_split,
    verify_bytes,
)
from nevermore.scan_core.io import cached_property, file_size, relocate
from nevermore.scan_core.metadata import (
    DATA_MANIFEST,
    FILE_PATH_ID,
    POSITION_ID,
    UNSUPPORTED_TYPES,
    ManifestFile,
    Transform,
    decode_bound,
    normalise_value,
    parse_transform,
    partition_scalar,
    partition_value,
    read_data_manifests,
    read_delete_manifests,
    snapshot_manifests,
)
from nevermore.scan_core.parts import (
    FileProjection,
    FileReader,
    decode_column,
    descended,
    field_id_of,
    open_file,
    partition_text,
    read_deletion_vector,
    read_position_deletes,
)

NAME = "manifests_match_files"
MAX_STATEMENTS = 20
"""Maximum statements in one result."""
_FLOATS = frozenset({"float", "double"})
_UNCOMPARED_BOUNDS = UNSUPPORTED_TYPES | {"variant", "uuid", "fixed", "boolean", "unknown"}
"""Types whose bounds writers order differently, or that are not used for pruning."""
_POSITION_PATHS = {
    FILE_PATH_ID: (NestedField(FILE_PATH_ID, "file_path", PrimitiveType("string")),),
    POSITION_ID: (NestedField(POSITION_ID, "pos", PrimitiveType("long")),),
}


def manifests_match_files(subject: Subject, since: int | None = None) -> CheckResult:
    """Every live file of a table's current snapshot matches its manifests, see `compare_manifests`."""
    return compare_manifests(subject.opened, subject.opened.metadata.current_snapshot, since)


def compare_manifests(table: Table, snapshot: Snapshot | None, since: int | None = None) -> CheckResult:
    """Every live file of a snapshot is undamaged, and what the manifests state about it is true.

    Every byte of the files is read and compared with the checksums in them. Also compared are the size and the number of
    rows of files, partition values with the transformed values of all rows (deleted ones too), bounds and counts of NULLs
    with the rows, and the summaries in the manifest list with the manifests. The partition of equality deletes is compared
    with their keys, as far as these contain its columns, and the partition of position deletes and deletion vectors with
    those of the live data files whose rows they delete.

    Args:
        table: as the engine opened it.
        snapshot: of the table, on any branch; None for a table without one.
        since: an earlier snapshot that has passed; files with the same manifest entries as in it are skipped.

    Raises:
        MissingFileError: a file is gone.
        MalformedTableError: a file cannot be read.
    """
    listed = [] if snapshot is None else snapshot_manifests(snapshot, table.io)
    earlier = [] if since is None else snapshot_manifests(table.metadata.snapshots[since], table.io)
    before = {_place(file): file for _, found in read_manifests(table, _without(earlier, listed)) for file in found}
    facts = FileFacts(table, listed)
    details: list[str] = []
    damaged: dict[str, Sequence[Damage]] = {}
    compared = {"data files": 0, "delete files": 0}
    for manifest, found in read_manifests(table, _without(listed, earlier)):
        details += summary_faults(manifest, found, table.metadata)
        for file in found:
            if _is_same_entry(before.get(_place(file)), file):
                continue
            compared["delete files" if isinstance(file, DeleteFile) else "data files"] += 1
            if file.path not in damaged:  # deletion vectors share their files
                damaged[file.path] = verify_bytes(file.path, file.format, table.io).damage
                if (size := file_size(file.path, table.io)) != file.file_size_bytes:
                    details.append(f"{file.path}: has {size:,} bytes, but {file.file_size_bytes:,} by its manifest")
                details += map(str, damaged[file.path])
            if not damaged[file.path]:
                details += (str(Damage(file.path, place, problem)) for place, problem in facts.faults(file))
    if len(details) > MAX_STATEMENTS:
        details = [*details[:MAX_STATEMENTS], f"and {len(details) - MAX_STATEMENTS:,} more"]
    not_compared = [f"not compared: {text}" for text in sorted(facts.not_compared)]
    return CheckResult(NAME, not details, compared, details=[*details, *not_compared])


_Files = Sequence[DataFile] | Sequence[DeleteFile]


def _without(manifests: Sequence[ManifestFile], others: Sequence[ManifestFile]) -> list[ManifestFile]:
    """Manifests that are not among the others. One that is in both snapshots has been compared, and never changes."""
    paths = {manifest.path for manifest in others}
    return [manifest for manifest in manifests if manifest.path not in paths]


def read_manifests(table: Table, listed: Sequence[ManifestFile]) -> list[tuple[ManifestFile, _Files]]:
    """The live files of each manifest, data manifests first."""
    data = [m for m in listed if m.content == DATA_MANIFEST]
    deletes = [m for m in listed if m.content != DATA_MANIFEST]
    return [
        *zip(data, read_data_manifests(data, table.metadata, table.io), strict=True),
        *zip(deletes, read_delete_manifests(deletes, table.metadata, table.io), strict=True),
    ]


def _place(file: ContentFile) -> tuple[str, int | None]:
    """Identity of a file; deletion vectors share their files."""
    return file.path, file.content_offset if isinstance(file, DeleteFile) else None


def _is_same_entry(before: ContentFile | None, now: ContentFile) -> bool:
    statistics = ("lower_bounds", "upper_bounds", "value_counts", "null_value_counts", "nan_value_counts")
    return before == now and all(dict(getattr(before, s)) == dict(getattr(now, s)) for s in statistics)


def summary_faults(manifest: ManifestFile, files: _Files, metadata: TableMetadata) -> Iterator[str]:
    """Statements of the manifest list about a manifest that the entries of the manifest contradict."""
    if manifest.live_files is not None and manifest.live_files != len(files):
        yield f"{manifest.path}: has {counted(len(files), 'live file')}, but {manifest.live_files:,} by the manifest list"
    if manifest.partitions is None or not files:
        return
    spec = metadata.specs[files[0].spec_id]
    types = metadata.partition_types(spec.spec_id)
    tuples = {file.partition for file in files}
    for i, (field, kind, summary) in enumerate(zip(spec.fields, types, manifest.partitions, strict=False)):
        low, high = decode_bound(summary.lower_bound, kind), decode_bound(summary.upper_bound, kind)
        values = [partition_value(partition[i], kind) for partition in tuples]
        for outside in [v for v in values if _is_outside(v, low, high, contains_null=summary.contains_null)][:1]:
            yield (
                f"{manifest.path}: has files with {field.name} = {outside}, which the manifest list rules out "
                f"(between {low} and {high}, {'NULL' if summary.contains_null else 'no NULL'})"
            )


def _is_outside(value: Any, low: Any, high: Any, *, contains_null: bool) -> bool:
    if value is None:
        return not contains_null
    if isinstance(value, float) and value != value:  # noqa: PLR0124 - NaN is in no bounds
        return False
    return (low is not None and value < low) or (high is not None and value > high)


@dataclass(frozen=True)
class _Claim:
    """A statement of a manifest about one column of a file.

    Attributes:
        path: the fields from the top-level column down to the one that the claim is about.
        text: the claim, for people.
        broken_by: for each value of the column whether it contradicts the claim.
        of_partition: whether the partition of the file makes the claim.
    """

    path: Sequence[NestedField]
    text: str
    broken_by: Callable[[pa.Array], pa.Array]
    of_partition: bool = False


def _in_other_partitions(expected: pa.Scalar, transform: Transform, kind: PrimitiveType, values: pa.Array) -> pa.Array:
    """Values that the transform gives another result than the partition has."""
    found = transform.apply(values, kind)
    if not expected.is_valid:
        return found.is_valid()
    is_nan = kind.name in _FLOATS and expected.as_py() != expected.as_py()
    return pc.invert(pc.fill_null(pc.is_nan(found) if is_nan else pc.equal(found, expected), fill_value=False))


def _beyond(lower: Any, upper: Any, kind: PrimitiveType, values: pa.Array) -> pa.Array:
    """Values outside of these bounds; None for no bound."""
    flags = pa.repeat(pa.scalar(value=False), len(values))
    for bound, is_beyond in ((lower, pc.less), (upper, pc.greater)):
        if bound is not None:
            scalar = partition_scalar(normalise_value(bound, kind), kind, "bound")
            flags = pc.or_(flags, pc.fill_null(is_beyond(values, scalar), fill_value=False))
    return flags


class FileFacts:
    """Compares what manifests state about the files of one table with the files.

    Attributes:
        not_compared: what could not be compared, and why.
    """

    def __init__(self, table: Table, manifests: Sequence[ManifestFile] = ()) -> None:
        self._table = table
        self._manifests = manifests
        self._metadata = table.metadata
        self._paths: Mapping[int, tuple[NestedField, ...]] = {**_POSITION_PATHS, **table.metadata.field_paths()}
        self._context = ScanContext(
            table.location,
            Schema(0, ()),
            predicate=None,
            field_paths=self._paths,
            specs=table.metadata.specs,
            name_mapping=table.metadata.name_mapping,
            io=table.io,
            options=ScanOptions(parallelism=1),
        )
        self.not_compared: set[str] = set()

    def faults(self, file: DataFile | DeleteFile) -> Iterator[tuple[str, str]]:
        """What the file contradicts in its manifest entry, each with the column or vector that does.

        Every column is decoded, one at a time, and claims are compared with the rows alone, never with statistics of the file.

        Raises:
            MissingFileError: the file is gone.
            MalformedTableError: it cannot be opened.
        """
        is_read = True
        if not (isinstance(file, DeleteFile) and file.is_deletion_vector):
            for fault in self._by_columns(file):
                is_read = False
                yield fault
        if isinstance(file, DeleteFile) and is_read:
            yield from self._by_positions(file)
            if file.is_deletion_vector:
                yield from self._scope_faults(file, filter(None, [file.referenced_data_file]))
            elif file.content is DeleteContent.POSITION and self._has_scopes(file):
                yield from self._scope_faults(file, self._paths_named_by(file))

    def _by_positions(self, file: DeleteFile) -> Iterator[tuple[str, str]]:
        """Deleted positions that their data file does not have."""
        io = self._context.io
        if file.is_deletion_vector:
            place = f"vector at byte {file.content_offset}"
            try:
                last_of = {file.referenced_data_file or "": read_deletion_vector(file, io, ScanMetrics()).last}
            except MalformedTableError as error:
                yield place, _without_path(error, file.path)
                return
        elif file.content is DeleteContent.POSITION:
            by_path = read_position_deletes(file, io, ScanMetrics(), ScanOptions()).by_path
            place, last_of = "column 'pos'", {path: found.last for path, found in by_path.items()}
        else:
            return
        for path, last in last_of.items():
            data = self._data_files.get(relocate(path, io).path)
            if data is not None and last >= data.record_count:
                yield place, f"deletes row {last:,} of {path}, which has {counted(data.record_count, 'row')}"

    @contextmanager
    def _open(self, file: ContentFile) -> Iterator[tuple[FileReader, FileProjection]]:
        with closing(open_file(file.path, file.format, self._context.io)) as reader:
            yield (
                reader,
                FileProjection(
                    reader.arrow_schema,
                    has_field_ids=reader.has_field_ids,
                    context=self._context,
                    file=file,
                    reader=reader,
                ),
            )

    def _verifiable_claims(self, file: DataFile | DeleteFile, projection: FileProjection) -> list[_Claim]:
        """Claims about rows of the file. A bound of a column that the file lacks is not about what stands in for the column."""
        return [
            claim
            for claim in self._claims(file)
            if (isinstance(file, DataFile) and claim.of_partition) or not projection.is_absent(claim.path[-1].field_id)
        ]

    def _by_columns(self, file: DataFile | DeleteFile) -> Iterator[tuple[str, str]]:
        """What the columns of a data, equality-delete or position-delete file contradict."""
        with self._open(file) as (reader, projection):
            if reader.num_rows != file.record_count:
                yield "", f"expected {counted(file.record_count, 'row')} by its manifest, found {reader.num_rows:,}"
            yield from (("", fault) for fault in _key_faults(file, projection))
            claims = self._verifiable_claims(file, projection)
            columns = {path[0].field_id: path[0] for path in self._paths.values()}
            in_file = {i for i in columns if projection.index_of(i) is not None}
            for index, arrow_field in enumerate(reader.arrow_schema):
                if reader.has_field_ids and field_id_of(arrow_field) not in columns:
                    try:
                        decode_column(reader, index)
                    except MalformedTableError as error:
                        yield f"column {arrow_field.name!r}", _without_path(error, file.path)
        for field_id, field in columns.items():
            own = [claim for claim in claims if claim.path[0].field_id == field_id]
            if field_id not in in_file and not own:
                continue
            try:
                problems = list(self._column_faults(file, field, own, is_in_file=field_id in in_file))
            except (UnsupportedError, MemoryLimitError) as error:
                self.not_compared.add(f"{file.path}: column {field.name!r}: {_without_path(error, file.path)}")
            except ScanError as error:
                yield f"column {field.name!r}", _without_path(error, file.path)
            else:
                yield from ((f"column {field.name!r}", problem) for problem in problems)

    def _column_faults(
        self, file: DataFile | DeleteFile, field: NestedField, claims: Sequence[_Claim], *, is_in_file: bool
    ) -> Iterator[str]:
        """Claims that the rows of one column contradict, and wrong counts of values, NULLs and NaNs if the file has it."""
        nulls = nans = 0
        is_float = isinstance(field.type, PrimitiveType) and field.type.name in _FLOATS
        num_rows, broken, examples = 0, Counter[int](), dict[int, str]()
        for batch in self._batches(file, [replace(field, required=False)]):
            num_rows += batch.num_rows
            nulls += batch.column(0).null_count
            nans += (pc.sum(pc.is_nan(batch.column(0))).as_py() or 0) if is_float else 0
            for number, claim in enumerate(claims):
                values = descended(batch.column(0), _steps(claim.path))
                flags = claim.broken_by(values)
                if count := pc.sum(flags).as_py():
                    broken[number] += count
                    examples.setdefault(number, _short(_first(values.filter(flags))))
        for number, count in sorted(broken.items()):
            yield (
                f"expected {claims[number].text} by its manifest; {count:,} of {num_rows:,} rows contradict, such as "
                f"{_name(claims[number].path)} = {examples[number]}"
            )
        if num_rows != file.record_count:
            yield f"expected {counted(file.record_count, 'row')} by its manifest, decoded {num_rows:,}"
        if not is_in_file or not isinstance(field.type, PrimitiveType):
            return  # writers differ in how they count members and elements
        stated = (
            ("values", file.value_counts, num_rows),
            ("NULLs", file.null_value_counts, nulls),
            *([("NaNs", file.nan_value_counts, nans)] if is_float else []),
        )
        for name, by_id, in_file in stated:
            if (expected := by_id.get(field.field_id)) is not None and expected != in_file:
                yield f"expected {expected:,} {name} by its manifest, found {in_file:,}"

    def _claims(self, file: DataFile | DeleteFile) -> Iterator[_Claim]:
        if isinstance(file, DataFile):
            yield from self._partition_values(file)
        elif file.content is DeleteContent.EQUALITY:
            yield from self._partition_values(file, within=frozenset(file.equality_ids))
        for field_id, path in self._paths.items():
            kind = path[-1].type
            if not isinstance(kind, PrimitiveType) or any(not isinstance(f.type, StructType) for f in path[:-1]):
                continue
            lower = decode_bound(file.lower_bounds.get(field_id), kind)
            upper = decode_bound(file.upper_bounds.get(field_id), kind)
            if (lower is not None or upper is not None) and kind.name not in _UNCOMPARED_BOUNDS:
                text = f"{_name(path)} between {_short(lower)} and {_short(upper)}"
                yield _Claim(path, text, partial(_beyond, lower, upper, kind))
            nulls = file.null_count(field_id) if len(path) == 1 and file.record_count else None
            if nulls == 0:
                yield _Claim(path, f"{_name(path)} without NULL", pc.is_null)
            elif nulls is not None and nulls >= file.record_count:
                yield _Claim(path, f"{_name(path)} NULL in all rows", pc.is_valid)

    def _partition_values(self, file: ContentFile, within: frozenset[int] | None = None) -> Iterator[_Claim]:
        """Claims by the values of the partition; `within` limits them to columns that a delete file has, because only these bind its rows."""
        spec = self._metadata.specs[file.spec_id]
        for field, value in zip(spec.fields, file.partition, strict=True):
            transform, path = parse_transform(field.transform), self._paths.get(field.source_id)
            if transform.kind == "void" or (within is not None and field.source_id not in within):
                continue
            kind = None if path is None else path[-1].type
            if transform.kind == "unknown" or path is None or not isinstance(kind, PrimitiveType):
                self.not_compared.add(f"partition {field.name}: {field.transform} of a column that cannot be computed")
                continue
            result = transform.result_type(kind)
            assert isinstance(result, PrimitiveType)  # noqa: S101 - transforms give values
            shown = partition_text(replace(spec, fields=(field,)), (value,), self._paths)
            is_broken = partial(_in_other_partitions, partition_scalar(value, result, file.path), transform, kind)
            yield _Claim(path, f"partition {shown}", is_broken, of_partition=True)

    def _has_scopes(self, file: DeleteFile) -> bool:
        """Whether position deletes could have another scope than the data files; without partitions there is only one."""
        return bool(file.referenced_data_file) or any(spec.fields for spec in self._metadata.specs.values())

    def _paths_named_by(self, file: DeleteFile) -> list[str]:
        """The data files whose rows a position-delete file deletes."""
        found = (pc.unique(batch.column(0)) for batch in self._batches(file, _POSITION_PATHS[FILE_PATH_ID]))
        return sorted({path for paths in found for path in paths.to_pylist()})

    def _scope_faults(self, file: DeleteFile, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Position deletes apply only to data files of their own spec and partition, or to the one file that they reference."""
        spec = self._metadata.specs[file.spec_id]
        for path in paths:
            if file.referenced_data_file is not None and path != file.referenced_data_file:
                yield "", f"deletes rows of {file.referenced_data_file} by its manifest, but its rows name {path}"
            data = self._data_files.get(relocate(path, self._context.io).path)
            if data is None or (data.spec_id, data.partition) == (file.spec_id, file.partition):
                continue  # a missing data file no longer has a partition
            own, other = (
                self._partition_text_of(spec, file),
                self._partition_text_of(self._metadata.specs[data.spec_id], data),
            )
            yield "", f"partition {own} by its manifest, but it deletes rows of {path}, whose partition is {other}"

    def _partition_text_of(self, spec: PartitionSpec, file: ContentFile) -> str:
        return f"{partition_text(spec, file.partition, self._paths) or 'none'} (spec {spec.spec_id})"

    @cached_property
    def _data_files(self) -> Mapping[str, DataFile]:
        """The live data files of the snapshot by path."""
        listed = [m for m in self._manifests if m.content == DATA_MANIFEST]
        found = read_data_manifests(listed, self._metadata, self._table.io)
        return {relocate(file.path, self._table.io).path: file for files in found for file in files}

    def _batches(self, file: ContentFile, columns: Sequence[NestedField]) -> Iterator[pa.RecordBatch]:
        """The rows of a file of any content, including deleted ones."""
        context = replace(self._context, projection=Schema(0, tuple(columns)))
        as_data = DataFile(**{f.name: getattr(file, f.name) for f in fields(ContentFile)})
        return read_split(Split(context, (FileScanTask(as_data, 0, as_data.file_size_bytes),)), ScanMetrics())


def _key_faults(file: ContentFile, projection: FileProjection) -> Iterator[str]:
    """Key columns that an equality-delete file should have."""
    if not isinstance(file, DeleteFile) or file.content is not DeleteContent.EQUALITY:
        return
    if not file.equality_ids:
        yield "expected ids of key columns (equality_ids) in its manifest, found none"
    for field_id in file.equality_ids:
        if projection.is_absent(field_id):
            yield f"expected the key column with id {field_id} by its manifest (equality_ids), but it is not in the file"


def _without_path(error: ScanError, path: str) -> str:
    return str(error).removeprefix(f"{path}: ")


def _steps(path: Sequence[NestedField]) -> list[int]:
    """From a top-level column down to the member at the end of the path, as places of children."""
    steps = []
    for above, below in pairwise(path):
        members = above.type.fields if isinstance(above.type, StructType) else ()
        steps.append([m.field_id for m in members].index(below.field_id))
    return steps


def _name(path: Sequence[NestedField]) -> str:
    return ".".join(f.name for f in path)


def _short(value: Any) -> str:
    return "NULL" if value is None else f"{value!s:.80}"


def _first(values: pa.Array) -> Any:
    return python_rows(pa.table({"value": values.slice(0, 1)}))[0]["value"]
