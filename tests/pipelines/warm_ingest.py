"""Importing this ingests an event: a forkserver that preloads it makes processes with nothing left to import or compile."""

import json
import tempfile
from pathlib import Path

from nevermore.pipelines.config.project import load
from nevermore.pipelines.ingest.feed_run import run_once

_CONFIG = """
tables:
  shop.products: {source: {type: files, path: "*.jsonl", format: debezium-json}, key: [id]}
"""
_EVENT = {
    "op": "c",
    "before": None,
    "after": {"id": 1, "n": 1},
    "source": {"db": "shop", "table": "products"},
    "ts_ms": 1,
}

with tempfile.TemporaryDirectory() as _folder:
    (Path(_folder) / "nevermore.yaml").write_text(_CONFIG)
    for _name in ("first", "second"):  # the first creates the tables
        (Path(_folder) / f"{_name}.jsonl").write_text(json.dumps(_EVENT) + "\n")
        run_once(load(Path(_folder) / "nevermore.yaml"))
