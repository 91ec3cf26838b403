"""Planning a table under construction, without reading it."""

from collections.abc import Mapping
from pathlib import Path

from nevermore.scan_core.expr.nodes import BoundPredicate
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.metadata.table_json import read_metadata
from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.model.table_metadata import TableMetadata
from nevermore.scan_core.plan.planner import ScanPlan, plan_scan
from nevermore.scan_core.split.tasks import FileScanTask, ScanContext


def read(location: Path | str, relocate: Mapping[str, str] | None = None) -> tuple[TableMetadata, FileIOConfig]:
    """The metadata at a location, and how its files are opened."""
    io = FileIOConfig(tuple((relocate or {}).items()))
    return read_metadata(str(location), io)[0], io


def plan(
    location: Path | str,
    snapshot_id: int | None = None,
    *,
    relocate: Mapping[str, str] | None = None,
    where: str | None = None,
    options: ScanOptions | None = None,
) -> ScanPlan:
    """The plan of a scan of all columns."""
    metadata, io = read(location, relocate)
    snapshot, schema = metadata.snapshot_for(snapshot_id)
    context = ScanContext(
        table=metadata.location,
        projection=schema,
        predicate=None if where is None else _bound(where, schema),
        field_paths=metadata.field_paths(),
        specs=metadata.specs,
        name_mapping=metadata.name_mapping,
        io=io,
        options=options or ScanOptions(),
    )
    return plan_scan(metadata, snapshot, context)


def task_of(planned: ScanPlan, path: str) -> FileScanTask:
    """The task of the data file at `path`."""
    return next(task for task in planned.tasks if task.data_file.path == path)


def equality_paths(task: FileScanTask) -> set[str]:
    """The equality-delete files that a task names."""
    return {file.path for group in task.equality_deletes for file in group.files}


def _bound(where: str, schema: object) -> BoundPredicate:
    from nevermore.scan_core.expr.bind import bind

    return bind(where, schema)  # type: ignore[arg-type]
