"""The sources of a published table, as its snapshots record them.

Tells which state of the mirrors the table and each of its partitions were made from, and which states were appended.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.config.published import PublishedConfig
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.positions import ERASED, ancestors, summary_properties
from nevermore.pipelines.publish.publish_commit import MODE, PARTITIONS, Mode
from nevermore.pipelines.publish.query import sql_of
from nevermore.scan_core import Scan, open_table

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Snapshot, Table

STATE = "nevermore.published-state"
"""Key in a summary: what all rows of the table reflect, as JSON."""
QUERY = "nevermore.query"
"""Key in a summary: hash of the SQL and of every setting that affects its result."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """One mirror as it was read: its identity, its snapshot, and the columns that the query needs."""

    uuid: str
    snapshot_id: int | None
    columns: str


@dataclass(frozen=True, slots=True)
class PublishedState:
    """State that the rows of a whole published table reflect.

    Attributes:
        query: hash of the SQL and of every setting that affects its result.
        sources: state of each mirror, by table.
        until: for SQL that uses its partition, the last one that was made; else None.
    """

    query: str
    sources: Mapping[str, SourceState]
    until: str | None = None

    def as_json(self) -> str:
        """For a snapshot's summary."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "PublishedState | None":
        """Parse the entry of a snapshot's summary; None for text of another version."""
        try:
            found = json.loads(text)
            sources = {name: SourceState(**source) for name, source in found["sources"].items()}
            return cls(found["query"], sources, found.get("until"))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


@dataclass(frozen=True, slots=True)
class Base:
    """Recorded content of a published table.

    Attributes:
        snapshot_id: current snapshot of the table; None for a table that does not exist or is empty.
        state: state that all rows except those of `made_since` reflect; None if no snapshot records one.
        made_since: keys of partitions that were made alone after the state.
        why_unknown: why there is no state.
    """

    snapshot_id: int | None
    state: PublishedState | None
    made_since: frozenset[str] = frozenset()
    why_unknown: str = ""


def current_state(
    config: Config, entry: PublishedConfig, scans: Mapping[str, Scan], until: str | None = None
) -> PublishedState:
    """State that a table made of these scans would reflect."""
    return PublishedState(query_hash(config, entry), {name: _source(scan) for name, scan in scans.items()}, until)


def query_hash(config: Config, entry: PublishedConfig) -> str:
    """Hash the SQL and every setting that affects its result."""
    meaning = {
        "sql": sql_of(config, entry),
        "partition": entry.partition,
        "parameters": {
            name: value.isoformat() if isinstance(value, date) else value for name, value in entry.parameters.items()
        },
        "values": list(entry.values),
        "start": entry.start,
        "key": list(entry.key) if entry.mode == "upsert" else [],
        "settings": {name: value for name, value in config.spark.conf.items() if name.startswith("spark.sql.")},
    }
    return _hash(meaning)


def changed_partitions(config: Config, name: str, since: str | None) -> set[str]:
    """Keys of the partitions whose data files are others than in the snapshot `since`; all that have rows without it."""
    table = find_table(open_catalog(config), name)
    partition = config.published[name].partitioning
    if table is None or partition is None:
        return set()
    opened = open_table(table)
    kind = opened.schema.find(partition.column).type

    def files(scan: Scan) -> set[tuple[Any, str]]:
        return {(task.data_file.partition[0], task.data_file.path) for task in scan.plan().tasks}

    known = [files(opened.scan().as_of_snapshot(i)) for i in opened.metadata.snapshots if str(i) == since]
    before = known[0] if known else set()
    return {partition.key_of(value, kind) for value, _ in files(opened.scan()) ^ before}


def base_of(table: "Table | None", mode: Mode = "replace") -> Base:
    """Determine a table's content from its snapshots, from the newest to the one that made all of it in this mode."""
    if table is None or table.metadata.current_snapshot_id is None:
        return Base(None, None, why_unknown="the table is empty")
    current = table.metadata.current_snapshot_id
    made: set[str] = set()
    for snapshot in ancestors(table):
        summary = summary_properties(snapshot)
        if (other := summary.get(MODE, mode)) != mode:
            return Base(current, None, why_unknown=f"snapshot {snapshot.snapshot_id} was made with mode: {other}")
        if STATE in summary:
            state = PublishedState.from_json(summary[STATE])
            why = "" if state is not None else "the last state has another version"
            return Base(current, state, frozenset(made), why)
        if PARTITIONS in summary:
            made.update(json.loads(summary[PARTITIONS]))
        elif not _is_rewrite(snapshot):
            return Base(current, None, why_unknown=f"snapshot {snapshot.snapshot_id} was made by something else")
    return Base(current, None, why_unknown="no snapshot records what the whole table was made from")


def partitions_json(keys: Collection[str]) -> str:
    """For a snapshot's summary."""
    return json.dumps(sorted(keys))


def _is_rewrite(snapshot: "Snapshot") -> bool:
    """Whether a snapshot changes files, but no row."""
    return snapshot.summary is not None and snapshot.summary.operation.value == "replace"


def _source(scan: Scan) -> SourceState:
    columns = [[f.name, f.field_id, str(f.type)] for f in scan.schema.fields]
    snapshot_id = None if scan.snapshot is None else scan.snapshot.snapshot_id
    return SourceState(str(scan.table.metadata.table_uuid), snapshot_id, _hash(columns))


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


SOURCES = "nevermore.sources"
"""Key in a snapshot's summary: fingerprint of the mirrors' state that its rows are from."""
APPENDED = "nevermore.appended"
"""Property of the table: fingerprint of the state from which all was appended, or with `.key` one partition."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What was appended from one state: everything, or partitions by their keys."""

    is_all: bool = False
    keys: frozenset[str] = frozenset()


def fingerprint(sources: Mapping[str, int]) -> str:
    """Fingerprint of the mirrors' state, by the snapshots that are read."""
    text = "\n".join(f"{name}={snapshot_id}" for name, snapshot_id in sorted(sources.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def remembered(state: str, keys: Collection[str] | None) -> dict[str, str]:
    """Table properties that record what a commit appends; None for all."""
    return {APPENDED: state} if keys is None else {f"{APPENDED}.{key}": state for key in keys}


def appended(table: "Table | None", state: str) -> Appended:
    """What was appended from a state of the mirrors to a table; `table` is None if it does not exist."""
    if table is None or table.metadata.current_snapshot_id is None:
        return Appended()
    line = {snapshot.snapshot_id for snapshot in ancestors(table)}
    oldest = min(s.sequence_number or 0 for s in table.metadata.snapshots if s.snapshot_id in line)
    made: dict[str | None, list[Any]] = {}  # by key; None for all
    for snapshot in table.metadata.snapshots:
        summary = summary_properties(snapshot)
        if (summary.get(MODE), summary.get(SOURCES)) == ("append", state):
            for key in json.loads(summary[PARTITIONS]) if PARTITIONS in summary else [None]:
                made.setdefault(key, []).append(snapshot)
    found = {key for key, snapshots in made.items() if any(s.snapshot_id in line for s in snapshots)}
    for name, value in table.metadata.properties.items():
        if value != state or (name != APPENDED and not name.startswith(f"{APPENDED}.")):
            continue
        key = None if name == APPENDED else name.removeprefix(f"{APPENDED}.")
        # A tag may keep a snapshot beyond expired ancestors, where a rollback cannot be detected, so the property
        # counts.
        snapshots = made.get(key, [])
        if not snapshots or any((s.sequence_number or 0) < oldest for s in snapshots):
            found.add(key)
    return Appended(None in found, frozenset(key for key in found if key is not None))


SOURCE = "nevermore.source."
"""Key in a summary, followed by the name of a mirror: its snapshot that was read."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Sources of rows.

    Attributes:
        query: hash of the SQL and of every setting that affects its result; None where a snapshot does not record it.
        snapshots: snapshot that was read, by mirror; mirrors without snapshots are left out.
    """

    query: str | None
    snapshots: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origins of the rows of a published table.

    Attributes:
        made: origins of partitions that were made alone since, by key.
        rest: origin of all other rows; None where no snapshot records it.
        others: snapshots of other programs that came later, newest first: what they wrote should not be there.
    """

    made: Mapping[str, Origin] = field(default_factory=dict)
    rest: Origin | None = None
    others: tuple[int, ...] = ()


def provenance_of(table: "Table") -> Provenance:
    """Find the origins of rows in the snapshots, from the newest to the one that made the whole table."""
    made: dict[str, Origin] = {}
    others: list[int] = []
    for snapshot in ancestors(table):
        summary = summary_properties(snapshot)
        if ERASED in summary or summary.get(MODE, "replace") != "replace":
            return Provenance(made)  # rows are gone that the SQL gives, or earlier rows are still there, too
        if STATE in summary:
            state = PublishedState.from_json(summary[STATE])
            if state is None:
                return Provenance(made)
            known = {name: s.snapshot_id for name, s in state.sources.items() if s.snapshot_id is not None}
            return Provenance(made, Origin(state.query, known), tuple(others))
        if PARTITIONS not in summary:
            others += [] if _is_rewrite(snapshot) else [snapshot.snapshot_id]
            continue
        keys = json.loads(summary[PARTITIONS])
        sources = {n.removeprefix(SOURCE): int(i) for n, i in summary.items() if n.startswith(SOURCE)}
        for key in keys:
            made.setdefault(key, Origin(summary.get(QUERY), sources))
    return Provenance(made, others=tuple(others))
