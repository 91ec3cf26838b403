"""The command `check`: what it tells others."""

import json
from pathlib import Path

import pytest

from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import open_catalog
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


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["shop.products"], "give the published table whose partitions"),
        ([], "give the published table whose partitions are to be compared"),
        (["shop.daily", "shop.daily"], "just one"),
        (["shop.productz"], "did you mean shop.products?"),
    ],
)
def test_partitions_of_anything_but_one_published_table_are_refused_by_what_it_is(
    words: list[str], wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "nevermore.yaml"
    mirror = {"source": {"type": "files", "path": "none"}, "key": ["id"]}
    daily = {"sql": "select cast(at as date) as day from shop.products", "partition": "day"}
    config.write_text(json.dumps({"tables": {"shop.products": mirror}, "published": {"shop.daily": daily}}))
    open_catalog(load(config))
    with pytest.raises(SystemExit):
        main(["check", *words, "--partition", "2026-01-01", "--config", str(config)])
    assert wanted in " ".join(capsys.readouterr().err.replace("│", " ").split())
