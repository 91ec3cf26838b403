"""A catalog behind a proxy tells that a commit failed: it may have happened all the same, and files must not be removed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from nevermore.pipelines.errors import CommitConflictError, CommitUnknownError
from nevermore.pipelines.iceberg import commit
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.table_writer import write_rows
from tests.pipelines.iceberg_tables import new_table, reloaded, rows_of
from tests.support.rest_catalog import Fault, FaultyCatalog, serving_catalog


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyCatalog]:
    monkeypatch.setattr(commit, "PAUSE_SECONDS", 0.01)
    with serving_catalog(tmp_path) as found:
        yield found


@pytest.fixture
def table(server: FaultyCatalog) -> Any:
    return new_table(load_catalog("rest", **server.properties), {"id": "long"})


def append(table: Any, *ids: int) -> RowDelta:
    """As every writer commits: what it has written is removed after an error of ours."""
    delta = RowDelta(table)
    files = write_rows(pa.table({"id": list(ids)}), delta.target, delta.default_spec)
    try:
        delta.commit(files, {}, operation="append")
    except (CommitConflictError, CommitUnknownError):
        delta.discard(files)
        raise
    return delta


def check_whole(server: FaultyCatalog, ids: list[int]) -> None:
    """The rows are those, and nothing lies around."""
    table = reloaded(server.known)
    assert [row["id"] for row in rows_of(table)] == ids
    named = {path.removeprefix("file://") for path in table.inspect.all_files()["file_path"].to_pylist()}
    named |= {path.removeprefix("file://") for path in table.inspect.all_manifests()["path"].to_pylist()}
    named |= {s.manifest_list.removeprefix("file://") for s in table.metadata.snapshots}
    folder = Path(table.location().removeprefix("file://"))
    assert {str(p) for p in folder.rglob("*") if p.suffix in {".parquet", ".avro"}} == named


@pytest.mark.each(2)
@pytest.mark.parametrize("fault", ["repeated", "done-504", "done-503", "done-closed"])
def test_a_commit_that_happened_counts_whatever_the_answer_was(fault: Fault, server: FaultyCatalog, table: Any) -> None:
    append(table, 1)
    server.faults.append(fault)
    delta = append(table, 2)
    assert len(delta.table.metadata.snapshots) == 2
    append(table, 3)
    check_whole(server, [1, 2, 3])


@pytest.mark.parametrize("fault", ["lost-504", "lost-closed"])
def test_a_commit_that_did_not_happen_is_asked_for_again(fault: Fault, server: FaultyCatalog, table: Any) -> None:
    server.faults += [fault, fault]
    append(table, 1)
    assert server.commits == 3
    check_whole(server, [1])


def test_a_commit_that_happens_after_its_answer_happens_once(server: FaultyCatalog, table: Any) -> None:
    server.faults += ["late-504", "lost-504", "then-504"]
    append(table, 1)
    check_whole(server, [1])


def test_a_commit_that_is_late_is_shut_out_by_its_repetition(server: FaultyCatalog, table: Any) -> None:
    server.faults.append("late-504")
    append(table, 1)
    append(table, 2)
    server.happen_late()
    check_whole(server, [1, 2])


def test_a_commit_overtaken_by_another_while_its_state_is_unknown_is_a_conflict(
    server: FaultyCatalog, table: Any
) -> None:
    stale = reloaded(load_catalog("other", **server.properties))
    append(table, 1)
    server.faults.append("lost-504")
    with pytest.raises(CommitConflictError):
        append(stale, 2)
    check_whole(server, [1])


def test_files_stay_where_nobody_tells_whether_the_commit_happened(server: FaultyCatalog, table: Any) -> None:
    server.faults.append("down")
    with pytest.raises(CommitUnknownError, match=r"shop\.t: it is unknown whether the catalog has committed"):
        append(table, 1)
    server.is_down = False
    check_whole(server, [1])


def test_files_stay_where_a_commit_may_happen_later(server: FaultyCatalog, table: Any) -> None:
    server.faults += ["late-504", *["lost-504"] * (commit.ATTEMPTS - 1)]
    with pytest.raises(CommitUnknownError):
        append(table, 1)
    server.happen_late()
    check_whole(server, [1])


def test_files_stay_where_a_conflict_is_told_while_the_same_commit_may_be_on_its_way(
    server: FaultyCatalog, table: Any
) -> None:
    server.faults += ["late-504", *["lost-409"] * (commit.ATTEMPTS - 1)]
    with pytest.raises(CommitUnknownError):
        append(table, 1)
    server.happen_late()
    check_whole(server, [1])


def test_a_first_answer_of_a_conflict_counts_where_the_table_has_not_changed(server: FaultyCatalog, table: Any) -> None:
    server.faults.append("lost-409")
    with pytest.raises(CommitConflictError):
        append(table, 1)
    check_whole(server, [])
