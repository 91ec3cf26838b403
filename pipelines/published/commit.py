"""How the files of a published day become one snapshot: in the place of what was there, beside it, or over it by key.

Decides what leaves the table and what has been done before; the files themselves are written by whoever is asked for
them. No pyspark here.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import pyarrow as pa

from pipelines.catalog import create_table, find_table
from pipelines.errors import CommitConflictError, ConfigError, SchemaConflictError
from pipelines.mirrors.delete_scope import scope_deletes
from pipelines.mirrors.live_keys import live_keys
from pipelines.published.written_keys import written_keys
from pipelines.tables.commit import Committed, RowDelta, partition_is, retry_conflicts
from pipelines.tables.file_metrics import WrittenFile
from pipelines.tables.schema_evolution import evolve
from pipelines.tables.table_writer import check_key, write_deletes
from scan_core.schema import NestedField

Mode = Literal["replace", "append", "upsert"]
WriteFiles = Callable[[RowDelta], Sequence[WrittenFile]]
"""Writes the rows of the day under the schema and default spec of a commit."""

PARTITION = "nevermore.partition"
MODE = "nevermore.mode"
SOURCES = "nevermore.sources"
"""Of a snapshot's summary: the state of the mirrors that its rows are from, in short."""
APPENDED = "nevermore.appended."
"""Property of the table, with the day: the state of the mirrors from which the day was appended, kept beyond snapshots."""

_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Published:
    """What one publication led to.

    Attributes:
        committed: the snapshot that made the rows visible.
        files: data files of the rows.
        delete_files: equality deletes of rows that they take the place of.
        is_repeat: nothing was written, for an earlier run has appended these very rows.
    """

    committed: Committed
    files: tuple[WrittenFile, ...]
    delete_files: tuple[WrittenFile, ...] = ()
    is_repeat: bool = False


class Publication:
    """One day of a published table, written once and committed as often as others are faster.

    Files are written anew only if the table's schema or spec changed between two attempts.
    """

    def __init__(
        self, catalog: Any, name: str, columns: Sequence[NestedField], *, partition: str, mode: Mode, key: Sequence[str]
    ) -> None:
        self._catalog = catalog
        self._name = name
        self._columns = tuple(columns)
        self._partition = partition
        self._mode = mode
        self._key = tuple(key)
        self._written_for: tuple[object, ...] | None = None
        self._files: tuple[WrittenFile, ...] = ()

    def commit(
        self, day: date, sources: Mapping[str, int], write: WriteFiles, properties: Mapping[str, str]
    ) -> Published:
        """Publish the day.

        Args:
            day: all rows are of it.
            sources: the snapshots that were read, by table.
            write: called when a commit needs the files.
            properties: for the snapshot's summary.

        Raises:
            ConfigError: the table has not the columns, key or partition that the config says.
            CommitConflictError: others were faster too often.
        """
        state = _fingerprint(sources)
        summary = {
            PARTITION: day.isoformat(),
            MODE: self._mode,
            SOURCES: state,
            **{f"nevermore.source.{name}": str(snapshot_id) for name, snapshot_id in sources.items()},
            **properties,
        }
        return retry_conflicts(lambda: self._attempt(day, state, write, summary))

    def _attempt(self, day: date, state: str, write: WriteFiles, summary: Mapping[str, str]) -> Published:
        table = find_table(self._catalog, self._name) or create_table(
            self._catalog, self._name, self._columns, partition_by=[("identity", self._partition)]
        )
        if self._mode == "append" and (earlier := _appended(table, day.isoformat(), state)) is not None:
            RowDelta(table).discard(self._files)
            return Published(earlier, (), is_repeat=True)
        delta = self._delta(table)
        if self._written_for != (shape := (delta.schema.fields, delta.default_spec)):
            delta.discard(self._files)
            self._files = tuple(write(delta))
            self._written_for = shape
        match self._mode:
            case "replace":
                self._require_days(delta)
                remove = partition_is(delta.default_spec.spec_id, ((day - _EPOCH).days,))
                return Published(delta.commit(self._files, summary, remove=remove, operation="overwrite"), self._files)
            case "append":
                delta.set_properties({APPENDED + day.isoformat(): state})
                return Published(delta.commit(self._files, summary, operation="append"), self._files)
            case "upsert":
                deletes = tuple(self._deletes(delta))
                try:
                    return Published(delta.commit([*self._files, *deletes], summary), self._files, deletes)
                except CommitConflictError:
                    delta.discard(deletes)
                    raise

    def _delta(self, table: Any) -> RowDelta:
        delta = published_delta(self._name, table, self._columns)
        if self._key:
            try:
                check_key(delta.schema, self._key)
            except SchemaConflictError as error:
                raise ConfigError(f"published {self._name}: {error}") from error
        if self._mode == "replace":
            self._require_days(delta)
        return delta

    def _require_days(self, delta: RowDelta) -> None:
        require_partition(self._name, delta, ("identity", self._partition))

    def _deletes(self, delta: RowDelta) -> Iterator[WrittenFile]:
        """Equality deletes of what the table may hold of the keys just written, some rows at a time."""
        live = live_keys(delta.table, delta.schema, self._key)
        if live.num_files == 0:
            return
        key_ids = check_key(delta.schema, self._key)
        for file in self._files:
            for keys in written_keys(file.path, delta.storage, self._key):
                for scoped in scope_deletes(delta, keys.filter(pa.array(live.may_hold(keys))), live, "allow"):
                    yield from write_deletes(scoped.keys, delta.target, scoped.spec, key_ids)


def published_delta(name: str, table: Any, columns: Sequence[NestedField]) -> RowDelta:
    """A commit on a published table whose schema takes rows of `columns`.

    Raises:
        ConfigError: a column has another type in the table.
    """
    delta = RowDelta(table)
    evolution = evolve(delta.schema, columns, table.metadata.last_column_id)
    if evolution.clashes:
        clash = evolution.clashes[0]
        raise ConfigError(
            f"published {name}: column {clash.column!r} is {clash.table_type} in the table and "
            f"{clash.feed_type} in the result: cast it, rename it, or drop the table"
        )
    if evolution.changed:
        delta.evolve(evolution.schema)
    return delta


def require_partition(name: str, delta: RowDelta, wanted: tuple[str, str] | None) -> None:
    """A partition can be replaced only where the table has it, in all files; (transform, column), None for no partition.

    Raises:
        ConfigError: the table or some of its files are partitioned otherwise.
    """
    spec = delta.default_spec
    fields = [(f.transform, delta.schema.field(f.source_id).name) for f in spec.fields if f.source_id in delta.schema]
    by = _partitioned_by(fields)
    if fields != ([] if wanted is None else [wanted]) or len(spec.fields) != len(fields):
        raise ConfigError(
            f"published {name}: the table is partitioned by {by}, not by {_partitioned_by([wanted] if wanted else [])}, "
            "so that no part of it can be replaced: publish to another table, drop this one, or use mode: upsert"
        )
    if others := sorted(live_keys(delta.table, delta.schema, ()).spec_ids - {spec.spec_id}):
        raise ConfigError(
            f"published {name}: files of the table lie under earlier partition specs ({others}), so that no part of it "
            "can be replaced: rewrite them under the current one"
        )


def _partitioned_by(fields: Sequence[tuple[str, str]]) -> str:
    return (
        ", ".join(column if transform == "identity" else f"{transform}({column})" for transform, column in fields)
        or "nothing"
    )


def _appended(table: Any, day: str, state: str) -> Committed | None:
    """The snapshot that appended this day from this state of the mirrors; the current one if that has expired.

    A snapshot that a rollback has taken back does not count.
    """
    metadata = table.metadata
    by_id = {s.snapshot_id: s for s in metadata.snapshots}
    current = by_id.get(metadata.current_snapshot_id)
    ancestors: dict[int, Any] = {}
    at = current
    while at is not None and at.snapshot_id not in ancestors:
        ancestors[at.snapshot_id] = oldest = at
        at = by_id.get(at.parent_snapshot_id)
    made = [s for s in metadata.snapshots if s.summary is not None and _is_append(s.summary, day, state)]
    for snapshot in reversed(made):
        if snapshot.snapshot_id in ancestors:
            return _committed(snapshot)
    if current is None or metadata.properties.get(APPENDED + day) != state:
        return None
    # A tag may keep a snapshot beyond expired ancestors: that it was rolled back cannot be seen, so the property counts.
    is_beyond = any(s.sequence_number < oldest.sequence_number for s in made)
    return _committed(current) if is_beyond or not made else None


def _is_append(summary: Any, day: str, state: str) -> bool:
    told = summary.additional_properties
    return (told.get(MODE), told.get(PARTITION), told.get(SOURCES)) == ("append", day, state)


def _committed(snapshot: Any) -> Committed:
    summary = snapshot.summary
    return Committed(
        snapshot.snapshot_id, snapshot.sequence_number, summary.operation.value, dict(summary.additional_properties)
    )


def _fingerprint(sources: Mapping[str, int]) -> str:
    text = "\n".join(f"{name}={snapshot_id}" for name, snapshot_id in sorted(sources.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
