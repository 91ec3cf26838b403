"""The command `check`: what it tells others."""

import json
from pathlib import Path

import pytest

from pipelines.cli.main import main
from tests.pipelines.cli.test_watch import receiver
from tests.pipelines.project import event, product


def test_check_posts_an_alert_for_each_failed_check(tmp_path: Path) -> None:
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "1.jsonl").write_text(event("c", product(1)) + "\n")
    rule = {"expect_column_values_to_be_in_set": {"column": "name", "value_set": ["z"]}}
    source = {"type": "files", "path": "landing/*.jsonl", "format": "debezium-json"}
    table = {"source": source, "key": ["id"], "checks": {"expectations": [rule]}}
    config = tmp_path / "nevermore.yaml"
    with receiver() as (webhook, posted):
        config.write_text(json.dumps({"tables": {"shop.products": table}}))
        for words, code in ((["ingest"], 0), (["check", "--alert"], 2)):
            with pytest.raises(SystemExit) as ended:
                main([*words, "--config", str(config)])
            assert ended.value.code in {code, None}
        config.write_text(json.dumps({"tables": {"shop.products": table}, "alerts": {"webhook": webhook}}))
        with pytest.raises(SystemExit) as ended:
            main(["check", "--alert", "--config", str(config)])
        assert ended.value.code == 1
    (message,) = [json.loads(body) for _, body in posted]
    assert (message["event"], message["table"], message["check"]) == (
        "check_failed",
        "shop.products",
        "meets_expectations",
    )
    assert "1 of 1 rows do not: a" in message["text"]
