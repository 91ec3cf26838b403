"""Checks of tables in an object store: the reference reads the files there, and finds what it finds in local tables."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from nevermore.checks import published_equality
from nevermore.checks.mirror_checks import all_checks_of, run_checks, snapshot_results
from nevermore.checks.published_equality import ProjectAuditor, check_published
from nevermore.pipelines.config.project import Config, load
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.publish.refresh import publish
from tests.checks.faults import lose_the_last_row
from tests.pipelines.project import event, product
from tests.support.object_server import properties_of, serving, store_of
from tests.support.spark_session import SPARK_TEST

PUBLISHED = {"partition": "value(name)", "sql": "select name, count(*) as n from shop.products group by name"}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Config]:
    """Two products, one of which was updated and the other deleted."""
    with serving() as address:
        properties = properties_of(address)
        store = store_of(properties)
        store.create_dir("bucket/landing")
        source = {"type": "files", "path": "s3://bucket/landing/*.jsonl", "format": "debezium-json"}
        catalog = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "s3://bucket/warehouse", **properties}
        checks = {"schema_matches": "block", "quarantine_is_small": {"max_share": 0.1}}
        tables = {"shop.products": {"source": source, "key": ["id"], "checks": checks}}
        (tmp_path / "nevermore.yaml").write_text(
            yaml.safe_dump({"catalog": catalog, "tables": tables, "published": {"shop.names": PUBLISHED}})
        )
        config = load(tmp_path / "nevermore.yaml")
        for name, lines in (
            ("1", [event("c", product(1)), event("c", product(2))]),
            ("2", [event("u", product(1, "b"), before=product(1)), event("d", product(2))]),
        ):
            with store.open_output_stream(f"bucket/landing/{name}.jsonl") as file:
                file.write("".join(f"{line}\n" for line in lines).encode())
            assert run_once(config).exit_code == 0
        yield config


@pytest.mark.slow
def test_rows_in_an_object_store_are_compared_with_both_references(project: Config) -> None:
    found = {r.name: r for r in run_checks(project, "shop.products", all_checks_of(project, "shop.products"))}
    found.pop("scans_are_fast")  # of two commits of one row
    assert [result for result in found.values() if not result.passed or result.details] == []
    assert found["mirror_equals_reference"].compared == {"rows from engine": 1, "rows in files": 1, "rows by log": 1}
    assert found["no_deleted_row_reappears"].compared == {"keys deleted in log": 1, "rows in table": 1}
    assert found["schema_matches"].compared["columns in table"] == 2
    assert all(result.passed for result in snapshot_results(project, "shop.products").results.values())


def test_a_fault_in_an_object_store_is_found(project: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_the_last_row(monkeypatch)
    (found,) = run_checks(project, "shop.products", ["mirror_equals_reference"])
    assert found.details[:2] == ["1 row of its own files not returned", "1 row of its change log not returned"]
    assert found.offending_keys == [{"id": 1}]


@pytest.mark.slow
@SPARK_TEST[0]
@pytest.mark.usefixtures("spark")
def test_rows_published_to_an_object_store_are_compared_with_duckdb(
    project: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "shop.names"
    report = publish(project, name, auditor=ProjectAuditor())
    assert {verdict.name: verdict.passed for verdict in report.checks if verdict.table == name} == {
        "published_rows_are_complete": True, "manifests_match_files": True, "published_equals_duckdb": True
    }  # fmt: skip
    found = {result.name: result for result in check_published(project, name)}
    assert found["published_equals_duckdb"].compared == {"rows published": 1, "rows by DuckDB": 1}
    assert [result.details for result in found.values()] == [[], []]
    to_duckdb = published_equality.duckdb_sql
    monkeypatch.setattr(published_equality, "duckdb_sql", lambda *given: f"select * from ({to_duckdb(*given)}) limit 0")
    (wrong,) = check_published(project, name, partitions=["b"])
    assert (wrong.passed, wrong.partitions) == (False, ["b"])
