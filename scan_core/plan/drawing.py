"""A plan as a picture in HTML: bytes to read and to skip, what excluded files, and each file with its deletes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from scan_core.model.html import Bar, Html, bars, details, facts, fragment, grid, page, section, size_text
from scan_core.model.snapshot import Snapshot
from scan_core.plan.delete_index import DeleteFileIndex
from scan_core.plan.explain import partition_text
from scan_core.plan.file_pruner import PlanTrace, Pruned, total
from scan_core.split.tasks import FileScanTask, ScanContext

MAX_FILES = 200
"""Files that are listed; all of them are counted."""


@dataclass(frozen=True, slots=True)
class DrawnPlan:
    """The parts of a plan that are drawn.

    Attributes:
        context: of the scan.
        snapshot: that is read; None for an empty table.
        index: the files to read and their deletes.
        trace: what planning read and excluded.
        tasks: the files to read.
        text: the plan as text.
    """

    context: ScanContext
    snapshot: Snapshot | None
    index: DeleteFileIndex
    trace: PlanTrace
    tasks: Sequence[FileScanTask]
    text: str

    def page(self) -> Html:
        """A complete HTML document."""
        return page(f"Plan of a scan of {self.context.table}", *_parts(self))

    def fragment(self) -> Html:
        """Markup for a notebook."""
        return fragment(*_parts(self))


def _parts(plan: DrawnPlan) -> Iterator[Html]:
    context, trace, index = plan.context, plan.trace, plan.index
    num_bytes = int(index.tasks.data_files.sizes.sum())
    yield facts(
        [
            ("snapshot", "none" if plan.snapshot is None else str(plan.snapshot.snapshot_id)),
            ("columns", len(context.projection.names)),
            ("filter", "none" if context.predicate is None else f"{context.predicate.sql:.500}"),
            ("data files to read", f"{len(plan.tasks):,} of {trace.data_files_seen:,} listed"),
            ("to read", size_text(num_bytes)),
            ("delete files that apply", f"{index.num_delete_files:,} of {trace.delete_files_seen:,} listed"),
            ("manifests", f"{trace.manifests_read:,} read, {total(trace.manifests):,} skipped"),
        ]
    )
    skipped = [_bar(reason, what) for reason, what in trace.data_files.items()]
    yield section(
        "Bytes of data files",
        bars([Bar("read", num_bytes, size_text(num_bytes), "read"), *skipped]),
    )
    excluded = [
        (kind, reason, what.count, size_text(what.num_bytes) if what.num_bytes else "")
        for kind, pruned in (
            ("manifests", trace.manifests),
            ("data files", trace.data_files),
            ("delete files", trace.delete_files),
        )
        for reason, what in pruned.items()
    ]
    if excluded:
        yield section("What was excluded, and by what", grid(("", "excluded by", "number", "size"), excluded))
    yield section("Files to read", _files(plan))
    yield details("as text", plan.text)


def _bar(reason: str, what: Pruned) -> Bar:
    noun = "file" if what.count == 1 else "files"
    return Bar(f"skipped by {reason}", what.num_bytes, f"{size_text(what.num_bytes)}, {what.count:,} {noun}", "skipped")


def _files(plan: DrawnPlan) -> Html:
    rows = [_row(plan, task) for task in islice(plan.tasks, MAX_FILES)]
    rest = len(plan.tasks) - len(rows)
    headings = ("file", "partition", "rows", "size", "equality deletes", "position deletes", "vector")
    more = f"<p class=muted>and {rest:,} more files</p>" if rest > 0 else ""
    return Html(grid(headings, rows, max_rows=MAX_FILES) + more)


def _row(plan: DrawnPlan, task: FileScanTask) -> Sequence[object]:
    file = task.data_file
    spec = plan.context.specs[file.spec_id]
    partition = "" if spec.is_unpartitioned else partition_text(spec, file.partition, plan.context.field_paths)
    newer = sum(
        delete.data_sequence_number > file.data_sequence_number
        for group in task.equality_deletes
        for delete in group.files
    )
    return (
        file.path.rpartition("/")[2],
        partition,
        file.record_count,
        size_text(file.file_size_bytes),
        newer,
        len(task.position_deletes),
        "" if task.deletion_vector is None else f"{task.deletion_vector.record_count:,} rows",
    )
