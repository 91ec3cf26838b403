"""A key whose newest change is in quarantine fails a check that blocks, until a newer change or a replay makes its row right."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nevermore.checks.mirror_checks import run_checks
from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.ingest.quarantine_replay import replay_quarantine
from nevermore.pipelines.maintain.replay import resync_from

GOOD, BAD = "1.5", "12345678.5"


def row(key: Any, value: str = GOOD, op: str = "u", key_name: str = "id") -> str:
    return json.dumps({"op": op, key_name: key, "d": "2024-05-01", "v": value}) + "\n"


class Project:
    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        (folder / "in").mkdir()
        self.number = 0
        self.configure(**settings)

    def configure(self, **settings: Any) -> None:
        entry = {"source": {"path": "in/*.jsonl", "format": "rows"}, "key": ["id"], "max_quarantine_ratio": 1}
        entry |= {"types": {"v": "decimal(6, 2)", "d": "date"}, **settings}
        (self.folder / "nevermore.yaml").write_text(yaml.safe_dump({"tables": {"shop.t": entry}}))
        self.config = load(self.folder / "nevermore.yaml")

    def take(self, *rows: str) -> list[str]:
        """Ingest rows as one file; return what the check says."""
        self.number += 1
        (self.folder / "in" / f"{self.number:03}.jsonl").write_text("".join(rows))
        report = run_once(self.config)
        assert not [t.error for t in report.tables if t.error]
        return self.stale()

    def stale(self) -> list[str]:
        (result,) = run_checks(self.config, "shop.t", ["no_key_is_stale"])
        assert result.passed == (not result.details) == (not result.reproduce)
        assert result.severity == "block"
        return [detail.removesuffix(": its newest change is in quarantine") for detail in result.details]


BATCHES: dict[str, tuple[list[list[str]], list[str]]] = {
    "update": ([[row(1), row(2)], [row(1, BAD)]], ["id = 1"]),
    "insert": ([[row(1)], [row(2, BAD, "c")]], ["id = 2"]),
    "first of all": ([[row(1, BAD), row(2)]], ["id = 1"]),
    "good one later": ([[row(1)], [row(1, BAD)], [row(1, "2")]], []),
    "good one later in the batch": ([[row(1), row(2, BAD), row(1, BAD), row(1), row(2, BAD)]], ["id = 2"]),
    "bad one later in the batch": ([[row(1), row(1, BAD)]], ["id = 1"]),
    "deleted later": ([[row(1)], [row(1, BAD)], [row(1, op="d")]], []),
    "truncated later": ([[row(1)], [row(1, BAD)], [json.dumps({"op": "t"}) + "\n"]], []),
    "bad again": ([[row(1, BAD), row(2)], [row(1)], [row(1, BAD)], [row(2)]], ["id = 1"]),
    "several": ([[row(n) for n in range(30)], [row(n, BAD) for n in range(30)]], [f"id = {n}" for n in sorted(map(str, range(30)))][:20]),
    "no key": ([[row(1)], ['{"op": "u", "v": 1}\n', "{not json\n"]], []),
}  # fmt: skip


@pytest.mark.each(12)
@pytest.mark.parametrize("name", BATCHES)
def test_the_keys_are_named_whose_newest_change_is_in_quarantine(tmp_path: Path, name: str) -> None:
    project = Project(tmp_path)
    batches, expected = BATCHES[name]
    for batch in batches:
        found = project.take(*batch)
    assert found == expected


@pytest.mark.each(12)
@pytest.mark.parametrize(
    "kind",
    ["long", "string", "date", "decimal(9, 2)", "timestamp", "timestamptz", "uuid", "binary", "time", "boolean"],
)
def test_keys_of_all_types_are_found_in_the_log(tmp_path: Path, kind: str) -> None:
    values = {"long": 5, "string": "a, b = c", "date": "2024-01-02", "decimal(9, 2)": "1.50", "timestamp": "2024-01-02T03:04:05.678", "timestamptz": "2024-01-02T03:04:05+05:30", "uuid": "b68a35a7-17ad-35b3-af2a-ae46edb4545a", "binary": "AAEC/w==", "time": "03:04:05", "boolean": True}  # fmt: skip
    project = Project(tmp_path, types={"id": kind, "v": "decimal(6, 2)", "d": "date"})
    assert len(project.take(row(values[kind]), row(values[kind], BAD))) == 1
    assert project.take(row(values[kind])) == []


def test_a_replay_or_a_full_load_ends_it(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert project.take(row(1), row(2), row(1, BAD), row(2, BAD)) == ["id = 1", "id = 2"]
    (tmp_path / "000-load.jsonl").write_text('{"id": 1, "d": "2024-05-01", "v": 2}\n')
    resync_from(open_catalog(project.config), project.config, "shop.t", (str(tmp_path / "000-load.jsonl"),), "rows")
    assert project.stale() == []
    assert project.take(row(1, BAD)) == ["id = 1"]
    project.configure(types={"v": "decimal(20, 2)", "d": "date"})
    replay_quarantine(open_catalog(project.config), project.config, "shop.t")
    assert project.stale() == []
