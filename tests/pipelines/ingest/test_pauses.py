"""A source of which no table can be read is asked more and more rarely, up to once a minute, and at the usual pace once it answers."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from nevermore.pipelines.config.project import load
from nevermore.pipelines.ingest import feed_run
from nevermore.pipelines.ingest.report import IngestReport, TableReport


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("interval", "failing", "expected"),
    [
        (5.0, [True] * 7 + [False, True, False], [0, 10, 20, 40, 60, 60, 60, 60, 5, 10]),
        (0.5, [True] * 10, [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]),
        (300.0, [True] * 4, [0, 300, 300, 300]),
        (5.0, [False] * 3, [0, 5, 5]),
    ],
)
def test_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: float, failing: list[bool], expected: list[float]
) -> None:
    source = {"path": "in/*.jsonl", "format": "rows"}
    (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump({"tables": {"shop.t": {"source": source, "key": ["id"]}}}))
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(feed_run, "time", SimpleNamespace(monotonic=lambda: clock.now))
    answers: Iterator[bool] = iter(failing)

    def run_once(*_: Any, **__: Any) -> IngestReport:
        report = TableReport("shop.t")
        report.error = "cannot connect" if next(answers) else None
        return IngestReport((report,), {}, 0.0)

    monkeypatch.setattr(feed_run, "run_once", run_once)
    waits: list[float] = []

    class Stop:
        def is_set(self) -> bool:
            return len(waits) >= len(failing)

        def wait(self, seconds: float) -> bool:
            waits.append(round(seconds, 3))
            clock.now += seconds
            return False

    feed_run.run_continuously(load(tmp_path / "nevermore.yaml"), Stop(), lambda _: None, interval_seconds=interval)  # type: ignore[arg-type]
    assert waits == expected
