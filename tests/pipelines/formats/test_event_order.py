"""`order_by`: what a run reads is put in order as a whole, or refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.catalog import open_catalog
from pipelines.config import load
from pipelines.errors import ConfigError, SourceError
from pipelines.formats.feed import FeedConfig, TableFeed
from pipelines.formats.registry import DecodedFeed, decode
from pipelines.ingest import run_once
from pipelines.sources.raw_events import from_documents
from tests.pipelines.iceberg_tables import reloaded, rows_of

TABLE = "shop.t"


def event(at: int | None, op: str = "u", key: int = 1) -> dict[str, Any]:
    return {"op": op, "before": None, "after": {"id": key, "n": at}, "source": {"lsn": at}}


def decoded(*events: dict[str, Any], reached: tuple[Any, ...] | None = None, path: str = "source.lsn") -> DecodedFeed:
    feed = TableFeed(name=TABLE, key=("id",), order_by=(path,))
    raw = from_documents([json.dumps(e).encode() for e in events])
    return decode(raw, FeedConfig(tables=(feed,), reached={} if reached is None else {TABLE: reached}))


def test_events_without_a_value_come_first_and_equal_ones_stay_in_place() -> None:
    result = decoded(event(3, key=1), event(1), event(None), event(3, key=2), event(2))
    rows = result.tables[TABLE].table.column("after").to_pylist()
    assert [(r["n"], r["id"]) for r in rows] == [(None, 1), (1, 1), (2, 1), (3, 1), (3, 2)]
    assert result.reached == {TABLE: (3,)}


def test_later_batch_may_go_on_but_not_back() -> None:
    assert decoded(event(5), event(3), reached=(3,)).reached == {TABLE: (5,)}
    with pytest.raises(SourceError, match=r"shop\.t: order_by source\.lsn: an event at 2 .* 3 was applied"):
        decoded(event(5), event(2), reached=(3,))
    with pytest.raises(SourceError, match="None comes after"):
        decoded(event(None), reached=(3,))


def test_unknown_path_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"no source\.nothing"):
        decoded(event(1), path="source.nothing")


def test_order_holds_over_all_files_of_a_run_whatever_the_batches(tmp_path: Path) -> None:
    source = {"type": "files", "path": "landing/*", "options": {"batch_rows": 1}}
    table = {"source": source, "key": ["id"], "order_by": ["source.lsn"], "commit_rows": 1}
    (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump({"tables": {TABLE: table}}))
    (tmp_path / "landing").mkdir()
    for number, at in enumerate([3, 9, 1, 7]):
        (tmp_path / "landing" / f"{number}.jsonl").write_text(json.dumps(event(at)) + "\n")
    config = load(tmp_path / "nevermore.yaml")
    assert run_once(config).exit_code == 0
    assert rows_of(reloaded(open_catalog(config), TABLE)) == [{"id": 1, "n": 9}]
