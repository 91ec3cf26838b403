"""Batches are read ahead while earlier ones are applied: in order, without what is done already, and not beyond the run."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from nevermore.pipelines.config.project import load
from nevermore.pipelines.decode.batches import SourceBatch
from nevermore.pipelines.errors import PipelineError, SourceError
from nevermore.pipelines.ingest import feed_run
from nevermore.pipelines.ingest.feed_run import FeedRun, run_once
from nevermore.pipelines.ingest.feeds import Feed
from nevermore.pipelines.ingest.report import IngestReport
from tests.pipelines.project import event, product

Batches = Iterator[SourceBatch]
NUM_BATCHES = 5


def run_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch, threads: int, source: Callable[[Batches], Batches]
) -> IngestReport:
    """A run over a few batches, which `source` is given and hands on."""
    (folder / "landing").mkdir()
    for number in range(NUM_BATCHES):
        texts = [event("c", product(number, "x"))] * 20
        (folder / "landing" / f"{number}.jsonl").write_text("".join(f"{text}\n" for text in texts))
    entry = {"type": "files", "path": "landing/*", "format": "debezium-json", "options": {"batch_rows": 20}}
    tables = {"shop.products": {"key": ["id"], "source": entry}}
    (folder / "nevermore.yaml").write_text(yaml.safe_dump({"threads": threads, "tables": tables}))
    batches = Feed.batches
    monkeypatch.setattr(Feed, "batches", lambda *given: source(batches(*given)))
    return run_once(load(folder / "nevermore.yaml"))


def on_adding(monkeypatch: pytest.MonkeyPatch, step: Callable[[], object]) -> None:
    add = FeedRun._add

    def adding(*given: Any) -> None:
        step()
        add(*given)

    monkeypatch.setattr(FeedRun, "_add", adding)


def test_each_batch_is_read_while_the_one_before_is_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=60)

    def source(batches: Batches) -> Batches:
        for number, batch in enumerate(batches):
            if number:
                both.wait()
            yield batch
        both.wait()

    on_adding(monkeypatch, both.wait)
    report = run_over(tmp_path, monkeypatch, 2, source)
    assert [(t.error, t.events.total()) for t in report.tables] == [(None, 20 * NUM_BATCHES)]


@pytest.mark.each(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_an_applied_batch_is_gone_while_the_next_is_read(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []

    def source(batches: Batches) -> Batches:
        gone = threading.Event()
        gone.set()
        for batch in batches:
            tries = range(600 if threads > 1 else 1)  # a thread that reads may be ahead of the one that applies
            found.append(any(gc.collect() < 0 or gone.wait(0.1) for _ in tries))
            gone = threading.Event()
            weakref.finalize(batch.raw, gone.set)
            yield batch
            del batch

    assert run_over(tmp_path, monkeypatch, threads, source).exit_code == 0
    assert found == [True] * NUM_BATCHES


def test_with_one_thread_what_fails_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scans = []

    def failing(*given: Any) -> None:
        scans.append(given)
        raise SourceError("the registry does not answer")

    monkeypatch.setattr(feed_run, "scan", failing)
    assert run_over(tmp_path, monkeypatch, 1, iter).exit_code == 1
    assert len(scans) == 1


@pytest.mark.parametrize("stop", [KeyboardInterrupt, PipelineError])
def test_reading_ends_before_a_run_does(
    stop: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the run stops while a batch is read."""
    reading, ended = threading.Event(), threading.Event()
    before = set(threading.enumerate())  # an earlier test of this process may have left threads of Spark

    def source(batches: Batches) -> Batches:
        try:
            yield next(batches)
            reading.set()
            time.sleep(0.2)
            yield from batches
        finally:
            ended.set()

    def stopping() -> None:
        assert reading.wait(60)
        raise stop("stopped")

    on_adding(monkeypatch, stopping)
    with pytest.raises(KeyboardInterrupt) if stop is KeyboardInterrupt else nullcontext():
        assert run_over(tmp_path, monkeypatch, 2, source).exit_code
    assert ended.is_set()
    assert not [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("nevermore-")]
