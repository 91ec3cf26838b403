"""Publications into a REST catalog behind a proxy: each happens once, whatever is answered, and no file is lost or left."""

from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from nevermore.pipelines.errors import CommitUnknownError
from nevermore.pipelines.iceberg import commit
from nevermore.pipelines.publish.publish_commit import Mode
from tests.pipelines.publish.amounts import FIRST, SECOND, Project
from tests.support.rest_catalog import Fault, serving_catalog


@pytest.mark.each(3)
@pytest.mark.parametrize("mode", ["replace", "append", "upsert"])
def test_rows_are_published_once(mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "PAUSE_SECONDS", 0.01)
    project = Project(tmp_path)
    with serving_catalog(tmp_path) as server:
        project.catalog = load_catalog("rest", **server.properties)
        project.publish("upsert", FIRST, {1: 10, 2: 20})
        project.publish("upsert", SECOND, {3: 30})
        faults: list[Fault] = ["repeated", "done-504", "lost-closed"]
        for turn, fault in enumerate(faults):
            server.faults.append(fault)
            project.publish(mode, FIRST, {1: 11 + turn}, state=str(turn))
        server.faults.append("down")
        with pytest.raises(CommitUnknownError):
            project.publish(mode, FIRST, {1: 14}, state="3")
        server.is_down = False
        old = {"replace": [], "append": [(1, 1, 10), *((1, 1, 11 + n) for n in range(3))], "upsert": []}[mode]
        kept = [] if mode == "replace" else [(1, 2, 20)]
        assert project.rows == [*old, (1, 1, 14), *kept, (2, 3, 30)]
        named = {p.removeprefix("file://") for p in project.table.inspect.all_files()["file_path"].to_pylist()}
        assert {str(p) for p in project.folder.rglob("published/data/**/*.parquet")} == named
