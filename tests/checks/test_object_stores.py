"""Checks of tables in an object store: what the engine can check is checked, what the reference cannot read is said so."""

from pathlib import Path

import yaml

from checks.mirror_checks import all_checks_of, run_checks, snapshot_results
from pipelines.config.project import load
from pipelines.ingest.feed_run import run_once
from tests.pipelines.project import event, product
from tests.support.object_server import properties_of, serving, store_of


def test_the_reference_reads_no_object_store_and_the_checks_say_so(tmp_path: Path) -> None:
    with serving() as address:
        properties = properties_of(address)
        store = store_of(properties)
        store.create_dir("bucket/landing")
        with store.open_output_stream("bucket/landing/1.jsonl") as file:
            file.write(f"{event('c', product(1))}\n{event('c', product(2))}\n".encode())
        source = {"type": "files", "path": "s3://bucket/landing/*.jsonl", "format": "debezium-json"}
        catalog = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "s3://bucket/warehouse", **properties}
        checks = {"schema_matches": "block", "quarantine_is_small": {"max_share": 0.1}}
        tables = {"shop.products": {"source": source, "key": ["id"], "checks": checks}}
        (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump({"catalog": catalog, "tables": tables}))
        config = load(tmp_path / "nevermore.yaml")
        assert run_once(config).exit_code == 0
        found = {r.name: r for r in run_checks(config, "shop.products", all_checks_of(config, "shop.products"))}
        assert all(result.passed for result in found.values())
        assert found["mirror_equals_reference"].details == ["not compared: the reference reads local files only"]
        assert found["schema_matches"].compared["columns in table"] == 2
        assert found["quarantine_is_small"].details == []
        assert all(result.passed for result in snapshot_results(config, "shop.products").results.values())
