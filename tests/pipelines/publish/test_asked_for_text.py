"""One text where several partitions are asked for would be taken for its letters."""

from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.config.project import parse
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.publish.query import requested_partitions

CONFIG = """
tables:
  shop.orders: {source: {type: files, path: none}, key: [id]}
published:
  shop.daily: {partition: day, sql: "select cast(at as date) as day, id from shop.orders"}
"""


def test_one_text_in_place_of_a_list_of_partitions_is_refused(tmp_path: Path) -> None:
    config, text = parse(CONFIG, tmp_path / "nevermore.yaml"), "2026-01-02"
    asked: Any = text
    with pytest.raises(ConfigError, match=r"not a single text: \['2026-01-02'\]"):
        requested_partitions(config, "shop.daily", asked, is_full=False)
    assert requested_partitions(config, "shop.daily", [text], is_full=False) == [text]
