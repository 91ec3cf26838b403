"""Checks of all rows of a mirror, within a limit of memory: a large table is compared in buckets of its keys.

Rows of the engine, of the files and of the log are streamed to files on the local disk by the hash of their key, and each
bucket is compared by itself. Rows of one key are in one bucket, so that the results are those of the whole table.
"""

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.checks.comparison import CheckResult, canonical, canonical_type
from nevermore.checks.equality import ROW_CHECKS, Found, are_among, row_bytes
from nevermore.checks.reference.expected_rows import (
    AdoptedRows,
    Folded,
    LoggedChanges,
    adopted_batches,
    fold_log,
    live_batches,
    log_batches,
)
from nevermore.checks.reference.sql_columns import limited_memory, open_connection
from nevermore.checks.subject import Subject

_WHOLE_SHARE = 8
"""A table of at most this part of the memory is compared as a whole: rows are held in several forms at once."""
_BUCKET_SHARE = 24
"""Part of the memory that the rows of one bucket take as they are read."""
_DATABASE_SHARE = 2
"""Part of the memory that DuckDB may use, which spills what is more."""
_CHANGE_BYTES = 64
"""Bytes of a change beside its row."""
Numbers = npt.NDArray[np.int64]


def row_results(subject: Subject, names: Iterable[str]) -> dict[str, CheckResult]:
    """The results of some of `ROW_CHECKS`, by name."""
    wanted = list(names)
    if not _is_large(subject):
        return {name: ROW_CHECKS[name](subject).result(name) for name in wanted}
    found: dict[str, Found] = {}
    with limited_memory(subject.memory_bytes // _DATABASE_SHARE):
        for bucket in _buckets(subject):
            for name in wanted:
                made = ROW_CHECKS[name](bucket)
                found[name] = found[name] + made if name in found else made
    return {name: found[name].result(name) for name in wanted}


def mirror_equals_reference(subject: Subject) -> CheckResult:
    """The rows from the engine equal those of both references, as multisets and in exact types."""
    return row_results(subject, ["mirror_equals_reference"])["mirror_equals_reference"]


def key_is_unique(subject: Subject) -> CheckResult:
    """No two live rows of the table have the same key."""
    return row_results(subject, ["key_is_unique"])["key_is_unique"]


def no_deleted_row_reappears(subject: Subject) -> CheckResult:
    """No key that the log deleted, and did not insert again, is among the rows that the engine returns."""
    return row_results(subject, ["no_deleted_row_reappears"])["no_deleted_row_reappears"]


def removals_find_rows(subject: Subject) -> CheckResult:
    """Every delete and update of a table without a key found the old row that it contains."""
    return row_results(subject, ["removals_find_rows"])["removals_find_rows"]


def _is_large(subject: Subject) -> bool:
    return _num_bytes(subject) * _WHOLE_SHARE > subject.memory_bytes


def _num_bytes(subject: Subject) -> int:
    """About how many bytes all rows take that are compared: of the engine, of the files, and of the log."""
    rows = _num_rows(subject, subject.table)
    changes = 0 if subject.change_log is None else _num_rows(subject, subject.change_log)
    width = row_bytes(subject) if rows else 0.0
    return int(2 * rows * width + changes * (width + _CHANGE_BYTES))


def _num_rows(subject: Subject, table: str) -> int:
    return sum(task.data_file.record_count for task in subject.open(table).scan().plan().tasks)


class _Spill:
    """Rows in one file, in an order by which each bucket can be read."""

    def __init__(self, path: Path, buffer_bytes: int) -> None:
        self._path = path
        self._buffer_bytes = buffer_bytes
        self._held: list[tuple[pa.Table, Numbers]] = []
        self._num_held = 0
        self._file = pa.OSFile(str(path), "wb")
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._schema: pa.Schema | None = None
        self._places: dict[int, list[int]] = {}
        self._num_batches = 0

    def add(self, rows: pa.Table, numbers: Numbers) -> None:
        """Write rows, sooner or later, with the number of the bucket of each."""
        if rows.num_rows:
            self._held.append((rows, numbers))
            self._num_held += rows.nbytes
            if self._num_held > self._buffer_bytes:
                self._write()

    def _write(self) -> None:
        if not self._held:
            return
        rows = pa.concat_tables([rows for rows, _ in self._held])
        numbers = np.concatenate([numbers for _, numbers in self._held])
        self._held, self._num_held = [], 0
        if self._writer is None:
            self._schema = rows.schema
            self._writer = pa.ipc.new_file(self._file, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        order = np.argsort(numbers, kind="stable")
        ends = np.flatnonzero(np.diff(numbers[order], append=-1)) + 1
        rows = rows.take(pa.array(order))
        start = 0
        for end in ends:
            for batch in rows.slice(start, end - start).combine_chunks().to_batches():
                self._writer.write_batch(batch)
                self._places.setdefault(int(numbers[order[start]]), []).append(self._num_batches)
                self._num_batches += 1
            start = int(end)

    def finish(self) -> "_Spill":
        """Write what is held."""
        self._write()
        if self._writer is not None:
            self._writer.close()
        self._file.close()
        return self

    def rows(self, bucket: int) -> pa.Table | None:
        """The rows of a bucket; None if nothing was written at all."""
        if self._schema is None:
            return None
        with pa.OSFile(str(self._path)) as file, pa.ipc.open_file(file) as reader:
            batches = [reader.get_batch(place) for place in self._places.get(bucket, ())]
        return pa.Table.from_batches(batches, schema=self._schema)


def _buckets(subject: Subject) -> Iterator[Subject]:
    """Subjects like a mirror, each with the rows of some of its keys."""
    count = _num_buckets(subject)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nevermore-check-")))
        buffer_bytes = subject.memory_bytes // _BUCKET_SHARE

        def spill(name: str) -> _Spill:
            return _Spill(folder / name, buffer_bytes)

        by_log = subject.change_log is not None
        division = _Division.of(subject, count) if by_log else _Division(subject, count, subject.key)
        options = replace(subject.options, memory_limit_bytes=buffer_bytes * 2)
        scan = subject.opened.scan().with_options(options)
        rows = _spilled(spill("engine"), scan.to_batches(), division.of_rows)
        keys = _spilled(spill("keys"), subject.keys_of(scan).to_batches() if subject.key else (), division.of_rows)
        in_files = live_batches(subject.table, relocate=subject.relocate, filesystem=subject.filesystem)
        files = _spilled(spill("files"), in_files, division.of_rows)
        folded = _folded_by_bucket(subject, division, spill) if by_log else None
        schema = scan.arrow_schema
        for number in range(division.num_buckets):
            bucket = replace(subject)
            bucket.__dict__["engine_rows"] = _or_none(rows.rows(number), schema)
            bucket.__dict__["file_rows"] = _or_none(files.rows(number), schema)
            if subject.key:
                key_schema = pa.schema([schema.field(name) for name in subject.key])
                bucket.__dict__["engine_keys"] = _or_none(keys.rows(number), key_schema)
            if folded is not None:
                bucket.__dict__["folded"] = folded(number)
            yield bucket
            pa.default_memory_pool().release_unused()


def _or_none(rows: pa.Table | None, schema: pa.Schema) -> pa.Table:
    return schema.empty_table() if rows is None else rows


def folded_rows(subject: Subject) -> Iterator[pa.Table]:
    """The rows that the log of a mirror requires, all at once or, if they are many, in buckets of their keys."""
    if not _is_large(subject):
        yield subject.folded.rows
        return
    with tempfile.TemporaryDirectory(prefix="nevermore-check-") as folder:
        division = _Division.of(subject, _num_buckets(subject))
        buffer_bytes = subject.memory_bytes // _BUCKET_SHARE
        folded = _folded_by_bucket(subject, division, lambda name: _Spill(Path(folder) / name, buffer_bytes))
        for number in range(division.num_buckets):
            yield folded(number).rows


def _num_buckets(subject: Subject) -> int:
    return math.ceil(_num_bytes(subject) * _BUCKET_SHARE / subject.memory_bytes)


def _folded_by_bucket(
    subject: Subject, division: "_Division", spill: Callable[[str], _Spill]
) -> Callable[[int], Folded]:
    """Write the changes of the log, and the adopted rows, by bucket; return what folds a bucket."""
    adopted = None
    if subject.adopted is not None:
        begin = adopted_batches(subject.adopted, relocate=subject.relocate, filesystem=subject.filesystem)
        adopted = _spilled(spill("adopted"), begin, division.of_rows, as_read=True)
    logged = spill("log")
    for changes in division.changes():
        logged.add(*changes)
    logged.finish()

    def folded(bucket: int) -> Folded:
        begin, rows = subject.adopted, adopted and adopted.rows(bucket)
        if begin is not None and rows is not None:
            begin = replace(begin, rows=rows)
        return fold_log(
            str(subject.change_log),
            subject.key,
            up_to_ordinal=subject.required_ordinal,
            adopted=begin,
            changes=logged.rows(bucket),
            relocate=subject.relocate,
            filesystem=subject.filesystem,
        )

    return folded


def _spilled(
    spill: _Spill,
    batches: Iterable[pa.RecordBatch | pa.Table],
    number: Callable[[pa.Table], Numbers],
    *,
    as_read: bool = False,
) -> _Spill:
    for batch in batches:
        read = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
        rows = canonical(read)
        spill.add(read if as_read else rows, number(rows))
    return spill.finish()


class _Division:
    """How the rows of a mirror, and the changes of its log, are divided among buckets.

    Args:
        subject: the mirror.
        count: number of buckets.
        columns: the columns whose values decide.
        linked: keys that all belong to one more bucket: a change gave a row another key, and took some of its values
            from the row with the key before.
    """

    def __init__(self, subject: Subject, count: int, columns: Sequence[str], linked: pa.Table | None = None) -> None:
        self._subject = subject
        self._count = count if columns else 1
        self._linked = linked
        schema = subject.opened.scan().arrow_schema
        self._kinds = {name: canonical_type(schema.field(name).type) for name in columns}

    @property
    def num_buckets(self) -> int:
        """Number of buckets."""
        return self._count + (self._linked is not None)

    @classmethod
    def of(cls, subject: Subject, count: int) -> "_Division":
        """A division in which every change belongs to one bucket, or can be split into a delete and an insert."""
        logged = cls._logged(subject, "len(unchanged) > 0 AND op <> 't'")
        schema = subject.opened.scan().arrow_schema
        if logged is None:
            return cls(subject, 1, ())
        if not subject.key:
            lacking: set[str] = set()
            for batch in logged.batches:
                lacking |= set(pc.unique(pc.list_flatten(batch["unchanged"])).to_pylist())
            known = {*logged.keys} & {*logged.after} - lacking
            return cls(subject, count, [f.name for f in schema if f.name in known and not pa.types.is_nested(f.type)])
        plain = cls(subject, count, subject.key)
        parts = []
        for batch in logged.batches:
            rows = batch.filter(pc.not_equal(batch["op"], "d"))
            old, new = (plain._columns(rows, side, logged) for side in ("key", "after"))
            moved = pa.array(plain._differ(old, new))
            parts += [old.filter(moved), new.filter(moved)]
        linked = pa.concat_tables(parts) if parts else None
        return cls(subject, count, subject.key, linked if linked is not None and linked.num_rows else None)

    @staticmethod
    def _logged(subject: Subject, condition: str = "true") -> LoggedChanges | None:
        adopted: AdoptedRows | None = subject.adopted
        return log_batches(
            str(subject.change_log),
            after_ordinal=None if adopted is None else adopted.ordinal,
            up_to_ordinal=subject.required_ordinal,
            condition=condition,
            relocate=subject.relocate,
            filesystem=subject.filesystem,
        )

    def of_rows(self, rows: pa.Table) -> Numbers:
        """The bucket of each row; `rows` are canonical."""
        return self._numbers(rows.select(list(self._kinds)))

    def changes(self) -> Iterator[tuple[pa.Table, Numbers]]:
        """The changes of the log with their buckets, some at a time."""
        logged = self._logged(self._subject)
        if logged is None:
            return
        for batch in logged.batches:
            is_truncate = pc.equal(batch["op"], "t")
            truncates = batch.filter(is_truncate)
            for number in range(self.num_buckets if truncates.num_rows else 0):
                yield truncates, np.full(truncates.num_rows, number)
            yield from self._divided(batch.filter(pc.invert(is_truncate)), logged)

    def _divided(self, changes: pa.Table, logged: LoggedChanges) -> Iterator[tuple[pa.Table, Numbers]]:
        ops = changes["op"].to_numpy()
        removed = self._numbers(self._columns(changes, "key", logged))
        added = self._numbers(self._columns(changes, "after", logged))
        if not self._subject.key:  # only these have an old row
            removed = np.where((ops == "d") | (ops == "u"), removed, added)
        added = np.where(ops == "d", removed, added)
        is_whole = removed == added
        yield changes.filter(pa.array(is_whole)), removed[is_whole]
        split = changes.filter(pa.array(~is_whole))
        if split.num_rows:
            yield _as_delete(split, keeps_unchanged=not self._subject.key), removed[~is_whole]
            yield _as_insert(split, logged), added[~is_whole]

    def _columns(self, changes: pa.Table, side: str, logged: LoggedChanges) -> pa.Table:
        """The columns that decide, before (`key`) or after a change, in the types of the mirror."""
        names = logged.keys if side == "key" else logged.after
        members = changes[side].combine_chunks().flatten()
        found = canonical(pa.table([members[names.index(name)] for name in self._kinds], names=list(self._kinds)))
        columns = [
            column if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary(kind) else column.cast(kind)
            for column, kind in zip(found.columns, self._kinds.values(), strict=True)
        ]
        return pa.table(columns, names=list(self._kinds))

    def _numbers(self, columns: pa.Table) -> Numbers:
        if not columns.num_rows or (self._count == 1 and self._linked is None):
            return np.zeros(columns.num_rows, np.int64)
        names = [f"c{i}" for i in range(columns.num_columns)]
        with open_connection() as connection:
            places = pa.array(np.arange(columns.num_rows))
            connection.register("keys", columns.rename_columns(names).append_column("place", places))
            hashed = connection.sql(f"SELECT place, CAST(hash({', '.join(names)}) % {self._count} AS BIGINT) FROM keys")
            found = hashed.to_arrow_table()
        numbers = np.zeros(columns.num_rows, np.int64)
        numbers[found.column(0).to_numpy()] = found.column(1).to_numpy()
        if self._linked is not None:
            numbers[are_among(columns, self._linked).to_numpy(zero_copy_only=False)] = self._count
        return numbers

    @staticmethod
    def _differ(left: pa.Table, right: pa.Table) -> npt.NDArray[np.bool_]:
        """For each row whether the keys are different; NULL equals NULL."""
        found = np.zeros(left.num_rows, bool)
        for one, other in zip(left.columns, right.columns, strict=True):
            same = pc.fill_null(pc.equal(one, other), fill_value=False).to_numpy()
            nulls = one.is_null().to_numpy() & other.is_null().to_numpy()
            found |= ~(same | nulls)
        return found


def _as_delete(changes: pa.Table, *, keeps_unchanged: bool) -> pa.Table:
    """What updates remove."""
    made = _with(changes, op=pa.array(["d"] * changes.num_rows), after=None)
    return made if keeps_unchanged else _with(made, unchanged=_no_names(changes))


def _as_insert(changes: pa.Table, logged: LoggedChanges) -> pa.Table:
    """What updates add, with its own key."""
    kind = changes.schema.field("key").type
    members = dict(zip(logged.after, changes["after"].combine_chunks().flatten(), strict=True))
    nothing = pa.nulls(changes.num_rows)
    values = [members.get(name, nothing).cast(f.type) for name, f in zip(logged.keys, kind, strict=True)]
    key = pa.StructArray.from_arrays(values, fields=list(kind)) if values else None
    return _with(changes, op=pa.array(["c"] * changes.num_rows), key=key, unchanged=_no_names(changes))


def _no_names(changes: pa.Table) -> pa.Array:
    offsets = pa.array(np.zeros(changes.num_rows + 1, np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array([], pa.string()))


def _with(changes: pa.Table, **columns: pa.Array | None) -> pa.Table:
    """Changes with other columns; None stands for NULLs."""
    for name, column in columns.items():
        place, field = changes.schema.get_field_index(name), changes.schema.field(name)
        changed = pa.nulls(changes.num_rows, field.type) if column is None else column.cast(field.type)
        changes = changes.set_column(place, field, changed)
    return changes
