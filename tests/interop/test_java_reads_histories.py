"""Iceberg Java reads the rows of every snapshot that is left of random histories of a mirror."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.interop.test_iceberg_java import JAVA_PYTHON, READER
from tests.pipelines.maintain.test_histories import MirrorHistory, State, quick, without_nulls

pytestmark = pytest.mark.skipif(JAVA_PYTHON is None, reason="make interop sets up the second environment")
HISTORIES = int(os.environ.get("NEVERMORE_INTEROP_HISTORIES", "25"))


class KeptHistory(MirrorHistory):
    """A history whose files stay, and the rows of its snapshots at the end."""

    kept: ClassVar[list[tuple[str, int, State]]] = []

    def teardown(self) -> None:
        """Keep the table."""
        if self.exists:
            table = self.table
            left = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id in self.seen]
            location = table.metadata_location.removeprefix("file://")
            self.kept += [(location, number, self.seen[number]) for number in left]


def test_iceberg_java_reads_the_rows_of_random_histories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeptHistory, "parent", tmp_path)
    monkeypatch.setattr(KeptHistory, "kept", [])
    run_state_machine_as_test(KeptHistory, settings=settings(quick, max_examples=HISTORIES))
    jobs: list[dict[str, Any]] = [
        {"metadata": metadata, "snapshot": number, "output": str(tmp_path / f"{i}.parquet")}
        for i, (metadata, number, _) in enumerate(KeptHistory.kept)
    ]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    command = [str(JAVA_PYTHON), "-W", "ignore", str(READER), str(tmp_path / "jobs.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=850)
    assert done.returncode == 0, done.stderr[-4000:]
    for job, (metadata, number, rows) in zip(jobs, KeptHistory.kept, strict=True):
        found = pq.read_table(job["output"]).to_pylist()
        assert len(found) == len(rows), f"{metadata} at {number}"
        assert without_nulls({row["id"]: row for row in found}) == rows, f"{metadata} at {number}"
    assert len(jobs) > HISTORIES
