"""What people see of assets: labels of the config before the first run, columns and lineage after it."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
import yaml

from nevermore.assets.jobs import INGEST_JOB
from nevermore.assets.metadata import published_columns
from nevermore.assets.project import mirror_key
from nevermore.pipelines.config.project import parse
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.publish.query import parse_query
from nevermore.scan_core import NestedField, PrimitiveType, Schema
from tests.conftest import REPOSITORY
from tests.support.shop_project import ShopProject

LABELS = {
    "description": "All orders.",
    "owners": ["team:sales", "ada@example.com"],
    "tags": {"domain": "sales", "pii": True},
    "group": "sales",
    "freshness": "1h",
}


@pytest.fixture
def project(tmp_path: Path) -> ShopProject:
    return ShopProject(tmp_path)


def label(project: ShopProject, section: str, table: str) -> None:
    document = yaml.safe_load(project.path.read_text())
    document[section][table] |= LABELS
    project.path.write_text(yaml.safe_dump(document, sort_keys=False))


def specs(project: ShopProject) -> dict[str, dg.AssetSpec]:
    return {spec.key.to_user_string(): spec for spec in project.definitions.resolve_all_asset_specs()}


@pytest.mark.parametrize(
    ("section", "table", "keys"),
    [
        ("tables", "shop.orders", ["change_log/shop_orders", "mirror/shop/orders"]),
        ("published", "shop.daily", ["published/shop/daily"]),
    ],
)
def test_assets_have_the_labels_of_the_config(section: str, table: str, keys: list[str], project: ShopProject) -> None:
    label(project, section, table)
    found = specs(project)
    line = next(n for n, t in enumerate(project.path.read_text().splitlines(), 1) if f"  {table}:" in t)
    for key in keys:
        spec = found[key]
        assert (spec.group_name, list(spec.owners)) == ("sales", LABELS["owners"])
        assert {"domain": "sales", "pii": "true", "nevermore/layer": key.partition("/")[0]}.items() <= spec.tags.items()
        assert "iceberg" in spec.kinds
        assert str(spec.description).startswith("All orders.\n\n")
        assert spec.freshness_policy == dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=1))
        (reference,) = spec.metadata["dagster/code_references"].code_references
        assert (reference.file_path, reference.line_number) == (str(project.path), line)
    others = [spec for key, spec in found.items() if key not in keys]
    assert {(spec.group_name, tuple(spec.owners), spec.freshness_policy) for spec in others} == {("shop", (), None)}


def test_the_sql_is_shown(project: ShopProject) -> None:
    assert f"```sql\n{project.config.published['shop.daily'].sql.strip()}\n```" in str(
        specs(project)["published/shop/daily"].description
    )


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("owners: [ada]", "'ada' is not an owner; write an e-mail address, or a team as team:data"),
        ("group: the shop", "'the shop' cannot be the name of a group"),
        ("tags: {a b: c}", "'a b' cannot be the name of a tag"),
        ("tags: {a: b c}", "'b c' cannot be the value of a tag"),
        ("tags: {dagster/x: y}", "dagster/x is managed by Dagster"),
        ("freshness: 10s", "must be at least 60"),
        ("freshness: soon", "'soon' is not a duration"),
    ],
)
@pytest.mark.parametrize("section", ["tables", "published"])
def test_labels_that_dagster_would_refuse_are_errors_with_their_line(section: str, option: str, message: str) -> None:
    entries = {"tables": "source: {path: a}", "published": "sql: select 1"}
    text = "".join(
        f"{name}:\n  s.{name}:\n    {entry}\n" + (f"    {option}\n" if name == section else "")
        for name, entry in entries.items()
    )
    line = text[: text.index(option)].count("\n") + 1
    with pytest.raises(ConfigError, match=f"^nevermore.yaml:{line}: ") as error:
        parse(text)
    assert message in str(error.value)


@pytest.mark.slow
def test_after_an_ingest_a_mirror_shows_columns_location_and_the_columns_of_its_log(project: ShopProject) -> None:
    project.land_orders()
    project.land_people()
    result = project.definitions.resolve_job_def(INGEST_JOB).execute_in_process(
        asset_selection=[dg.AssetKey(["change_log", "shop_orders"]), mirror_key("shop.orders")],
    )
    found = {event.asset_key: event.materialization.metadata for event in result.get_asset_materialization_events()}  # type: ignore[union-attr]
    log, mirror = found[dg.AssetKey(["change_log", "shop_orders"])], found[mirror_key("shop.orders")]
    columns = {column.name: column.type for column in log["dagster/column_schema"].value.columns}  # type: ignore[union-attr]
    assert (columns["after"], columns["after.amount"], columns["ordinal"]) == ("struct", "double", "long")
    assert str(mirror["dagster/uri"].value).endswith("/warehouse/shop/orders")
    assert mirror["dagster/column_lineage"].value.deps_by_column == {  # type: ignore[union-attr]
        name: [dg.TableColumnDep(dg.AssetKey(["change_log", "shop_orders"]), f"after.{name}")]
        for name in ("id", "amount", "day")
    }
    assert published_columns(project.config, "shop.daily") == {}  # there is no such table yet


def test_column_descriptions_are_those_of_the_config(tmp_path: Path) -> None:
    project = ShopProject(tmp_path)
    described = "  shop.orders:\n    column_descriptions: {amount: In euros.}\n"
    project.path.write_text(project.path.read_text().replace("  shop.orders:\n", described, 1))
    project.land_orders()
    project.land_people()
    result = project.definitions.resolve_job_def(INGEST_JOB).execute_in_process(
        asset_selection=[dg.AssetKey(["change_log", "shop_orders"]), mirror_key("shop.orders")]
    )
    found = {event.asset_key: event.materialization.metadata for event in result.get_asset_materialization_events()}  # type: ignore[union-attr]
    log, mirror = (
        {c.name: c.description for c in found[key]["dagster/column_schema"].value.columns}  # type: ignore[union-attr]
        for key in (dg.AssetKey(["change_log", "shop_orders"]), mirror_key("shop.orders"))
    )
    assert (mirror["amount"], mirror["id"]) == ("In euros.", None)
    assert (log["after.amount"], log["before.amount"]) == ("In euros.", "In euros.")
    assert "c insert, u update, d delete" in str(log["op"])


PLOTTED = {
    "change_log": {"events: snapshot read", "events: create", "events: update", "events: delete", "events: truncate",
                   "quarantined", "dagster/row_count", "seconds behind the source"},
    "mirror": {"dagster/row_count", "dead rows", "percent of rows dead", "data files", "delete files",
               "bytes read to count", "bytes skipped to count", "seconds to count", "rows written"},
}  # fmt: skip


@pytest.mark.slow
def test_every_run_reports_the_numbers_that_the_ui_plots_also_one_that_finds_nothing_new(project: ShopProject) -> None:
    keys = [dg.AssetKey(["change_log", "shop_orders"]), mirror_key("shop.orders")]
    project.land_people()
    project.land_orders()
    for _ in range(2):
        result = project.definitions.resolve_job_def(INGEST_JOB).execute_in_process(asset_selection=keys)
        for event in result.get_asset_materialization_events():
            assert event.asset_key is not None
            numbers = {
                name
                for name, value in event.materialization.metadata.items()
                if isinstance(value, dg.IntMetadataValue | dg.FloatMetadataValue) and value.value is not None
            }
            assert PLOTTED[event.asset_key.path[0]] <= numbers


def _schema(**types: str) -> Schema:
    return Schema(0, tuple(NestedField(n, c, PrimitiveType(t), False) for n, (c, t) in enumerate(types.items(), 1)))


SCHEMAS = {"s.a": _schema(id="long", Amount="double"), "s.b": _schema(id="long", city="string")}


@pytest.mark.parametrize(
    ("sql", "sources"),
    [
        ("select city, sum(amount) as total from s.a join s.b using (id) group by city", {"city": ["s.b.city"], "total": ["s.a.Amount"]}),
        ("select * from s.b", {"id": ["s.b.id"], "city": ["s.b.city"]}),
        ("with x as (select id, amount * 2 as y from s.a) select y + id as z from x", {"z": ["s.a.Amount", "s.a.id"]}),
        ("select id from s.a union all select id from s.b", {"id": ["s.a.id", "s.b.id"]}),
        ("select (select max(amount) from s.a) as most, 1 as one, count(*) as n from s.b", {"most": ["s.a.Amount"], "one": [], "n": []}),
    ],
)  # fmt: skip
def test_columns_of_a_result_are_traced_to_those_of_mirrors(sql: str, sources: dict[str, list[str]]) -> None:
    found = parse_query("s.p", sql, None, list(SCHEMAS)).column_sources(SCHEMAS)
    assert {column: [f"{t}.{c}" for t, c in pairs] for column, pairs in found.items()} == sources


_LOAD = """
import socket, sys, time
def refuse(*given, **named): raise AssertionError("a socket was opened")
from nevermore.assets import definitions
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
began = time.process_time()
defs = definitions.load_definitions().get_repository_def().load_all_definitions()
print(time.process_time() - began, [m for m in ("pyspark", "py4j", "pyiceberg", "numba") if m in sys.modules])
"""


def load_alone(project: Path) -> tuple[float, str]:
    """CPU seconds that definitions take in a process of their own without imports, and heavy libraries among those."""
    done = subprocess.run(
        [sys.executable, "-c", _LOAD],
        env={"NEVERMORE_CONFIG": str(project), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seconds, _, modules = done.stdout.strip().partition(" ")
    return float(seconds), modules


@pytest.mark.parametrize(("tables", "limit"), [(10, 3.0), pytest.param(500, 10.0, marks=pytest.mark.slow)])
def test_definitions_load_without_network_tables_and_spark(tables: int, limit: float, tmp_path: Path) -> None:
    """The catalog does not exist, and an address of an object store leads nowhere."""
    config = {
        "catalog": {"type": "rest", "uri": "http://127.0.0.1:9", "warehouse": "s3://nowhere/warehouse"},
        "tables": {
            f"s{n % 5}.t{n}": {"source": {"path": f"s3://nowhere/{n}/*.jsonl", "format": "debezium-json"}, "key": ["id"]}
            for n in range(tables)
        },
        "published": {
            f"p.daily_{n}": {"partition": "day", "sql": f"select day, count(*) as n from s{n % 5}.t{n} group by day"}
            for n in range(tables // 2)
        },
    }  # fmt: skip
    path = tmp_path / "nevermore.yaml"
    path.write_text(yaml.safe_dump(config))
    seconds, modules = load_alone(path)
    assert modules == "[]"
    assert seconds < limit
