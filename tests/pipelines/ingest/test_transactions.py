"""Transactions that are larger than what is read at once: applied whole or not at all, in bounded memory."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nevermore.pipelines.formats.registry import scan
from nevermore.pipelines.ingest import feed_run
from nevermore.pipelines.ingest.feeds import Feed
from nevermore.pipelines.ingest.report import TableReport
from tests.pipelines.project import Project, the

BEGIN, COMMIT = json.dumps({"action": "B"}), json.dumps({"action": "C"})
NUM_CHANGES = 500


def change(action: str, key: int, text: str = "") -> str:
    columns = [{"name": "id", "type": "bigint", "value": key}, {"name": "text", "type": "text", "value": text}]
    row = {"columns": columns} if action == "I" else {"identity": columns[:1]}
    return json.dumps({"action": action, "schema": "shop", "table": "products", **row})


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    source = {"type": "files", "path": "landing/*", "format": "wal2json", "options": {"batch_bytes": 64 * 1024}}
    table = {"source": source, "key": ["id"], "memory_limit_bytes": "2MiB", "commit_rows": 100}
    (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump({"tables": {"shop.products": table}}))
    return project


def run_where_possible(project: Project, engine: str, monkeypatch: pytest.MonkeyPatch) -> TableReport:
    """A run; what Spark refuses as larger than a batch, this process reads, from where Spark stopped."""
    if engine == "spark":
        refused = the(project.run())
        assert "a transaction is larger than a batch, which only engine: local reads" in str(refused.error)
        assert (refused.exit_code, refused.events, refused.mirror_commits) == (1, {"c": 1}, 1)
        assert [row["id"] for row in project.rows()] == [0]
        monkeypatch.setattr(Feed, "why_local", lambda *_: "refused")
        report = the(project.run())
        report.events.update(refused.events)
        report.mirror_commits += 1
        return report
    return the(project.run())


def test_transaction_larger_than_memory_is_one_commit_of_log_and_mirror(
    project: Project, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def watched(raw: Any, config: Any) -> Any:
        sizes.append(sum(map(len, raw.documents.to_pylist())))
        return scan(raw, config)

    monkeypatch.setattr(feed_run, "scan", watched)
    large = [change("I", key, "x" * 1_200) for key in range(1, NUM_CHANGES)]
    project.land("1.jsonl", [BEGIN, change("I", 0), COMMIT, BEGIN, *large, change("D", 5), COMMIT])
    report = run_where_possible(project, engine, monkeypatch)
    assert report.error is None
    assert (report.events, report.mirror_commits) == ({"c": NUM_CHANGES, "d": 1}, 2)
    assert [row["id"] for row in project.rows()] == [0, 1, 2, 3, 4, *range(6, NUM_CHANGES)]
    assert len(sizes) > 5
    assert max(sizes) < 256 * 1024
    assert project.run().found_nothing_new


def test_transaction_without_its_commit_leaves_nothing_behind_and_is_read_again(
    project: Project, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = [change("I", key, "x" * 400) for key in range(1, NUM_CHANGES)]
    wrong = change("I", 99).replace('"bigint", "value": 99', '"bigint", "value": "no"')
    project.land("1.jsonl", [BEGIN, change("I", 0), COMMIT, BEGIN, *large[:300], wrong])
    assert run_where_possible(project, engine, monkeypatch).events == {"c": 1}
    project.land("2.jsonl", large[300:])
    report = the(project.run())
    assert (report.error, report.events, report.quarantined) == (None, {}, 0)
    assert [row["id"] for row in project.rows()] == [0]
    project.land("3.jsonl", [COMMIT])
    report = the(project.run())
    assert (report.events, report.quarantined, report.mirror_commits) == ({"c": NUM_CHANGES - 1}, 1, 1)
    assert len(project.rows()) == NUM_CHANGES
    assert project.run().found_nothing_new
