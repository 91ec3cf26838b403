"""The commands that describe tables: `nevermore tables`, `describe`, `snapshots`, `files` and `status`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nevermore.pipelines.cli.arguments import (
    AsJson,
    AsOf,
    EntryNames,
    OptionalConfig,
    ProjectConfig,
    Ref,
    Relocate,
    SnapshotId,
    TableName,
    build_scan,
    load,
    open_named_table,
)
from nevermore.pipelines.cli.terminal import print_grid, print_json
from nevermore.pipelines.config import DEFAULT_CONFIG
from nevermore.pipelines.wording import counted

if TYPE_CHECKING:
    from nevermore.pipelines.config.project import Config
    from nevermore.pipelines.iceberg.catalog import Catalog
    from nevermore.pipelines.maintain.status import CommitFacts, PublishedStatus, TableStatus
    from nevermore.scan_core import ContentFile, DeleteFile, FileScanTask, Scan, Snapshot, Table, TableMetadata


_COLUMNS = ("table", "role", "rows_in_files", "data_files", "delete_files")


def tables(
    config: ProjectConfig = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """List the tables of a project's catalog: mirrors, change logs, quarantines, published tables, others.

    The number of rows includes deleted rows; `nevermore scan TABLE --count` counts without them.
    """
    from nevermore.pipelines.iceberg.catalog import expanded, open_to_look

    settings = load(config)
    catalog = open_to_look(settings)
    found = list(_tables(expanded(settings, catalog), catalog))
    if as_json:
        print_json(found)
        return
    print_grid(
        ("table", "role", "rows in files", "data files", "delete files", "last commit", "location"),
        [
            (t["table"], t["role"], "not created yet", "", "", "", "")
            if t["location"] is None
            else (*(t[name] for name in _COLUMNS), t["last_commit"] or "never", t["location"])
            for t in found
        ],
    )


def _tables(settings: "Config", catalog: "Catalog | None") -> Iterator[dict[str, Any]]:
    """The tables in the order of the config, each mirror with its log and quarantine; then the others of the catalog."""
    from nevermore.pipelines.config.project import change_log_name, quarantine_name
    from nevermore.pipelines.iceberg.catalog import all_table_names

    there = set() if catalog is None else set(all_table_names(catalog))
    known: dict[str, str] = {}
    for name in settings.tables:
        known |= {name: "mirror", change_log_name(name): f"change log of {name}"}
        if (held := quarantine_name(name)) in there:
            known[held] = f"quarantine of {name}"
    known |= dict.fromkeys(settings.published, "published table")
    known |= dict.fromkeys(sorted(there - set(known)), "table outside the config")
    for name, role in known.items():
        yield _facts(name, role, catalog if name in there else None)


def _facts(name: str, role: str, catalog: "Catalog | None") -> dict[str, Any]:
    from nevermore.pipelines.iceberg.catalog import find_table
    from nevermore.pipelines.iceberg.positions import current_snapshot

    table = None if catalog is None else find_table(catalog, name)
    snapshot = None if table is None else current_snapshot(table)
    totals = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
    return {
        "table": name,
        "role": role,
        "location": None if table is None else table.location(),
        "snapshot_id": None if snapshot is None else snapshot.snapshot_id,
        "last_commit": None
        if snapshot is None
        else datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC).isoformat(timespec="seconds"),
        "rows_in_files": int(totals.get("total-records", 0)),
        "data_files": int(totals.get("total-data-files", 0)),
        "delete_files": int(totals.get("total-delete-files", 0)),
    }


DEFAULT_MAX_SHOWN = 50
_COUNTS = ("added-records", "deleted-records", "added-equality-deletes", "added-position-deletes", "added-data-files")


def describe(
    table: TableName,
    relocate: Relocate = None,
    config: OptionalConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show a table's columns, key, partitioning, properties, size and location.

    Example: `nevermore describe shop.orders`
    """
    found = _description(open_named_table(table, relocate, config))
    if as_json:
        print_json(found)
        return
    typer.echo(f"{table}: Iceberg format version {found['format_version']}, {found['location']}")
    typer.echo(f"  metadata    {found['metadata_file']}")
    typer.echo(f"  partitions  {', '.join(found['partitioning']) or 'none'}")
    current = found["current_snapshot"]
    if current is None:
        typer.echo("  no snapshot yet: the table is empty")
    else:
        typer.echo(f"  snapshot    {current['snapshot_id']}, {current['committed_at']}")
        totals = {name.removeprefix("total-"): n for name, n in current["summary"].items() if name.startswith("total-")}
        typer.echo(f"  totals      {', '.join(f'{name} {count}' for name, count in totals.items())}")
    typer.echo(f"  refs        {', '.join(found['refs']) or 'none'}; {counted(found['num_snapshots'], 'snapshot')}")
    for name, value in found["properties"].items():
        typer.echo(f"  property    {name} = {value:.200}")
    print_grid(
        ("id", "column", "type", "", "comment"),
        [
            (
                c["id"],
                c["name"],
                c["type"],
                " ".join(w for w in ("key" * c["is_key"], "required" * c["required"]) if w),
                c["doc"] or "",
            )
            for c in found["columns"]
        ],
        num_ids=1,
    )


def snapshots(
    table: TableName,
    relocate: Relocate = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Maximum number of snapshots to show; --json lists all.")
    ] = (DEFAULT_MAX_SHOWN),
    config: OptionalConfig = None,
    as_json: AsJson = False,
) -> None:
    """List a table's snapshots, newest first, with their time, operation and number of changes.

    Example: `nevermore snapshots shop.orders`
    """
    metadata = open_named_table(table, relocate, config).metadata
    newest = sorted(metadata.snapshots.values(), key=lambda s: (s.sequence_number, s.timestamp_ms), reverse=True)
    history = _history(metadata)
    documents = [_snapshot(snapshot, metadata, history) for snapshot in newest]
    if as_json:
        print_json(documents)
        return
    print_grid(
        ("snapshot", "committed", "operation", *(name.replace("-", " ") for name in _COUNTS), "refs"),
        [
            (
                str(d["snapshot_id"]) + ("" if d["is_ancestor"] else " (not in the current history)"),
                d["committed_at"],
                d["operation"],
                *(d["summary"].get(name, "") for name in _COUNTS),
                ", ".join(d["refs"]),
            )
            for d in documents[:limit]
        ],
    )
    _note_more(len(documents) - limit, "snapshot")


def files(
    table: TableName,
    relocate: Relocate = None,
    snapshot: SnapshotId = None,
    as_of: AsOf = None,
    ref: Ref = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", help="List only data files that may contain matching rows."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of files to show; --json lists all.")] = (
        DEFAULT_MAX_SHOWN
    ),
    config: OptionalConfig = None,
    as_json: AsJson = False,
) -> None:
    """List the data files of a snapshot with the number of delete files that may apply to each, and the delete files.

    With `--where`, only the data files that may contain matching rows. A delete file that applies to none of the listed
    data files is shown with 0 data files.

    Example: `nevermore files shop.orders --where "id < 100"`
    """
    opened = open_named_table(table, relocate, config)
    scan = build_scan(opened, where=where, snapshot=snapshot, as_of=as_of, ref=ref)
    document = _files(scan)
    if as_json:
        print_json(document)
        return
    data, deletes = document["data_files"], document["delete_files"]
    above = f"{opened.location.rstrip('/')}/"
    typer.echo(f"paths are relative to {above}")
    print_grid(
        ("data file", "rows", "bytes", "sequence number", "partition", "delete files"),
        [
            (
                f["path"].removeprefix(above),
                f["rows"],
                f["bytes"],
                f["sequence_number"],
                f["partition"],
                len(f["delete_files"]),
            )
            for f in data[:limit]
        ],
    )
    _note_more(len(data) - limit, "data file")
    if not deletes:
        typer.echo("no delete files")
        return
    typer.echo("")
    print_grid(
        ("delete file", "deletes by", "rows", "bytes", "sequence number", "partition", "data files"),
        [
            (
                f["path"].removeprefix(above),
                f["content"] + (f" ({', '.join(f['key'])})" if f["key"] else ""),
                f["rows"],
                f["bytes"],
                f["sequence_number"],
                f["partition"],
                f["data_files"],
            )
            for f in deletes[:limit]
        ],
    )
    _note_more(len(deletes) - limit, "delete file")


def readers(
    table: TableName, relocate: Relocate = None, config: OptionalConfig = None, as_json: AsJson = False
) -> None:
    """Say which engines read a table right, which refuse it or return wrong rows, why, and which command mends it.

    The rules are those of the compatibility page; conversion needs a table of a catalog.

    Example: `nevermore readers shop.orders`
    """
    from nevermore.scan_core.parts import readers_of

    opened = open_named_table(table, relocate, config)
    found = list(readers_of(opened.metadata, opened.io))
    if as_json:
        print_json(found)
        return
    rows = [(r.engine, r.verdict, r.why, r.mend and f"nevermore {r.mend} {table}") for r in found]
    print_grid(("engine", "reads it", "why not", "what mends it"), rows)


def _description(table: "Table") -> dict[str, Any]:
    from nevermore.pipelines.mirrors.table_shape import KEY

    metadata = table.metadata
    schema, spec = metadata.schema, metadata.specs[metadata.default_spec_id]
    current = metadata.current_snapshot
    key = metadata.properties.get(KEY, "").split(
        ","
    )  # Nevermore's mirrors keep the key in a property, other tables in the schema
    return {
        "location": metadata.location,
        "metadata_file": table.metadata_path,
        "table_uuid": metadata.table_uuid,
        "format_version": metadata.format_version,
        "columns": [
            {
                "id": f.field_id,
                "name": f.name,
                "type": str(f.type),
                "required": f.required,
                "is_key": f.field_id in schema.identifier_field_ids or f.name in key,
                "doc": f.doc,
            }
            for f in schema.fields
        ],
        "partitioning": [
            f"{field.transform}({_column_name(metadata, field.source_id)}) as {field.name}" for field in spec.fields
        ],
        "properties": dict(sorted(metadata.properties.items())),
        "refs": sorted(metadata.refs),
        "num_snapshots": len(metadata.snapshots),
        "current_snapshot": None if current is None else _snapshot(current, metadata, _history(metadata)),
    }


def _history(metadata: "TableMetadata") -> set[int]:
    """Ids of the current snapshot and of its ancestors."""
    current = metadata.current_snapshot_id
    return set() if current is None else {s.snapshot_id for s in metadata.ancestors(current)}


def _snapshot(snapshot: "Snapshot", metadata: "TableMetadata", history: set[int]) -> dict[str, Any]:
    return {
        "snapshot_id": snapshot.snapshot_id,
        "parent_id": snapshot.parent_id,
        "sequence_number": snapshot.sequence_number,
        "committed_at": datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "operation": snapshot.operation,
        "is_ancestor": snapshot.snapshot_id in history,
        "refs": sorted(name for name, ref in metadata.refs.items() if ref.snapshot_id == snapshot.snapshot_id),
        "summary": dict(snapshot.summary),
    }


def _files(scan: "Scan") -> dict[str, Any]:
    from nevermore.scan_core.metadata import DATA_MANIFEST, read_delete_manifests, snapshot_manifests

    plan, metadata = scan.plan(), scan.table.metadata
    applying = [_deletes_of(task) for task in plan.tasks]
    reach = Counter(_identity(file) for deletes in applying for file in deletes)
    manifests = () if plan.snapshot is None else snapshot_manifests(plan.snapshot, scan.table.io)
    wanted = [m for m in manifests if m.content != DATA_MANIFEST]
    listed = [file for part in read_delete_manifests(wanted, metadata, scan.table.io) for file in part]
    return {
        "snapshot_id": None if plan.snapshot is None else plan.snapshot.snapshot_id,
        "data_files": [
            {**_facts_of_table(task.data_file, metadata), "delete_files": [f.path for f in deletes]}
            for task, deletes in zip(plan.tasks, applying, strict=True)
        ],
        "delete_files": [
            {
                **_facts_of_table(file, metadata),
                "content": "vector" if file.is_deletion_vector else file.content.name.lower(),
                "key": [_column_name(metadata, i) for i in file.equality_ids],
                "data_files": reach[_identity(file)],
            }
            for file in listed
        ],
    }


def _deletes_of(task: "FileScanTask") -> "Sequence[DeleteFile]":
    """The delete files that may remove rows of a data file."""
    newer = (
        file
        for group in task.equality_deletes
        for file in group.files
        if file.data_sequence_number
        > task.data_file.data_sequence_number  # groups are shared by data files of all ages
    )
    return (*newer, *task.position_deletes, *([] if task.deletion_vector is None else [task.deletion_vector]))


def _identity(file: "DeleteFile") -> tuple[str, int | None]:
    """Several deletion vectors share a Puffin file."""
    return file.path, file.content_offset


def _facts_of_table(file: "ContentFile", metadata: "TableMetadata") -> dict[str, Any]:
    from nevermore.scan_core.parts import partition_text

    spec = metadata.specs[file.spec_id]
    return {
        "path": file.path,
        "format": file.format.value,
        "rows": file.record_count,
        "bytes": file.file_size_bytes,
        "sequence_number": file.data_sequence_number,
        "spec_id": file.spec_id,
        "partition": "" if spec.is_unpartitioned else partition_text(spec, file.partition, metadata.field_paths()),
    }


def _column_name(metadata: "TableMetadata", field_id: int) -> str:
    path = metadata.field_paths().get(field_id)
    return f"dropped column {field_id}" if path is None else ".".join(field.name for field in path)


def _note_more(number: int, noun: str) -> None:
    if number > 0:
        typer.echo(f"and {counted(number, f'more {noun}')}; --limit or --json shows them")


def status(
    tables: EntryNames = None,
    config: ProjectConfig = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Show the state of each mirror: changes logged and applied, position in the source, deletes, quarantine, last commits.

    For published tables: when they were published, and which of their mirrors have changed since. For replication slots of
    PostgreSQL: how much log the server keeps.
    """
    from nevermore.pipelines.iceberg.catalog import expanded, open_to_look
    from nevermore.pipelines.maintain.status import published_status, slot_status
    from nevermore.pipelines.maintain.status import status as status_of

    settings = load(config)
    catalog = open_to_look(settings)
    known = expanded(settings, catalog)
    mirrors = [name for name in tables or () if name not in known.published]
    found = [] if tables and not mirrors else status_of(catalog, known, mirrors or None)
    published = published_status(catalog, known, tables or None)
    slots = slot_status(known, tables or None, catalog)
    if as_json:
        others = [*({"kind": "published", **asdict(table)} for table in published)]
        print_json([*map(_mirror_document, found), *others, *({"kind": "slot", **asdict(slot)} for slot in slots)])
        return
    if not found and not published:
        typer.echo(f"the feeds of {config} have not been read yet: run nevermore ingest")
    for mirror in found:
        typer.echo("\n".join(_lines(mirror)))
    for table in published:
        typer.echo("\n".join(_published_lines(table)))
    for slot in slots:
        if slot.held_bytes is not None:
            typer.echo(
                f"slot {slot.slot}: {slot.status}, {slot.held_bytes:,} bytes of log held by the server, "
                f"{slot.lag_bytes:,} bytes not confirmed"
            )
        if slot.warning is not None:
            typer.echo(f"slot {slot.slot}: warning: {slot.warning}", err=True)


def _mirror_document(table: "TableStatus") -> dict[str, Any]:
    """The status, with the position (JSON text) as an object."""
    import orjson

    return {
        "kind": "mirror",
        **asdict(table),
        "position": None if table.position is None else orjson.loads(table.position),
        **{name: getattr(table, name) for name in ("place", "waiting", "lag_seconds", "delete_debt")},
    }


def _published_lines(table: "PublishedStatus") -> list[str]:
    if not table.commits:
        return [f"{table.table}: never published" + ("" if table.error is None else f"; {table.error}")]
    if table.error is not None:
        state = table.error
    elif table.behind is None:
        state = "its snapshots do not record which mirror snapshots it was built from"
    elif table.behind:
        state = f"behind {', '.join(table.behind)}"
    else:
        state = "up to date"
    head = f"{table.table}: published, {counted(table.rows, 'row')} in {counted(table.data_files, 'file')}, {state}"
    return [head, *map(_commit_line, table.commits)]


def _lines(table: "TableStatus") -> list[str]:
    if table.position is None:
        return [f"{table.table}: nothing ingested yet"]
    applied = "unknown: no snapshot of the mirror records it" if table.applied is None else f"{table.applied:,}"
    behind = f", {table.waiting:,} waiting" if table.waiting else ""
    if table.waiting and table.lag_seconds is not None:
        behind += f", {table.lag_seconds:,.0f} s behind the log"
    carried = f"{counted(table.delete_rows, 'delete row')} in {counted(table.delete_files, 'file')}"
    written = f"{counted(table.rows_written, 'row')} in {counted(table.data_files, 'file')}"
    lines = [
        f"{table.table}: {counted(table.logged, 'change')} logged, applied {applied}{behind}",
        f"  position    {table.place}",
        f"  log written {_when(table.log_committed_at)}",
        f"  delete debt {carried} on {written} ({table.delete_debt:.0%}), {counted(table.snapshots, 'snapshot')}",
    ]
    if table.quarantined:
        lines.append(f"  quarantine  {counted(table.quarantined, 'event')}")
    return lines + [_commit_line(commit) for commit in table.commits]


def _commit_line(commit: "CommitFacts") -> str:
    counts = f"{counted(commit.added_rows, 'row')}, {counted(commit.added_deletes, 'delete')}"
    return f"  commit      {_when(commit.committed_at)} {commit.operation} {commit.snapshot_id}: {counts}"


def _when(moment: "datetime | None") -> str:
    return "unknown" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
