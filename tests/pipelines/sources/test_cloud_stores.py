"""S3, Google Cloud Storage and Azure: landed events, tables and their upkeep there, and one clear message for what is wrong."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.scan_core import open_table
from tests.pipelines.project import event, product, the
from tests.support.cloud_stores import ACCOUNT, CloudStore, amazon_store, azure_store, google_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=["amazon", "google", "azure"])
def store(request: pytest.FixtureRequest) -> Iterator[CloudStore]:
    with {"amazon": amazon_store, "google": google_store, "azure": azure_store}[request.param]() as found:
        yield found


def project(folder: Path, store: CloudStore, place: str, **properties: Any) -> Path:
    config = folder / "nevermore.yaml"
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": store.address(f"{place}/warehouse")}
    source = {"path": store.address(f"{place}/landing/*.jsonl"), "format": "debezium-json"}
    tables = {"shop.products": {"source": source, "key": ["id"]}}
    config.write_text(yaml.safe_dump({"catalog": {**catalog, **store.properties, **properties}, "tables": tables}))
    return config


def land(store: CloudStore, path: str, *events: str) -> None:
    store.write(path, "".join(f"{one}\n" for one in events).encode())


def rows(config: Path) -> list[tuple[int, str]]:
    settings = load(config)
    table = find_table(open_catalog(settings), "shop.products")
    assert table is not None
    opened = open_table(table.metadata_location, properties=settings.catalog.properties)
    return sorted((row["id"], row["name"]) for row in opened.scan().to_table().to_pylist())


def test_events_become_tables(store: CloudStore, tmp_path: Path) -> None:
    config = project(tmp_path, store, "whole")
    land(store, "whole/landing/1.jsonl", *(event("c", product(i)) for i in range(100)))
    assert the(run_once(load(config))).events == {"c": 100}
    land(store, "whole/landing/2.jsonl", event("u", product(3, "b")), event("d", product(4)))
    assert the(run_once(load(config))).events == {"u": 1, "d": 1}
    assert rows(config) == [(i, "b" if i == 3 else "a") for i in range(100) if i != 4]
    assert run_once(load(config)).found_nothing_new


@pytest.mark.parametrize(
    "name", ["a b", "a+b", "50%", "a%20b", "ä€", "day=1", "a&b", "a'b", "~x", "a,b;c", "*x", "[a]", "emoji 🙂"]
)
def test_odd_names(store: CloudStore, name: str, tmp_path: Path) -> None:
    place = f"odd {name.translate(str.maketrans('', '', '*[]'))}"  # which patterns take for wildcards
    config = project(tmp_path, store, place)
    land(store, f"{place}/landing/{name}.jsonl", event("c", product(1)))
    assert the(run_once(load(config))).events == {"c": 1}
    assert rows(config) == [(1, "a")]


def failed(config: Path) -> str:
    """The error of a run, in one line, without secrets."""
    report = the(run_once(load(config)))
    assert report.exit_code == 1
    assert report.error is not None
    assert "\n" not in report.error
    assert not any(secret in report.error for secret in ("Eby8vdM02xNOcqFl", "c2VjcmV0"))
    return report.error


def test_what_is_not_there_is_named(store: CloudStore, tmp_path: Path) -> None:
    config = project(tmp_path, store, "missing")
    assert store.address("missing/landing") in failed(config)
    text = config.read_text()
    config.write_text(text.replace(store.address("missing/landing"), f"{store.scheme}://no-such-place/landing"))
    assert "no-such-place" in failed(config)


def test_a_warehouse_that_is_not_there(store: CloudStore, tmp_path: Path) -> None:
    config = project(tmp_path, store, "nowhere")
    land(store, "nowhere/landing/1.jsonl", event("c", product(1)))
    text = config.read_text()
    config.write_text(text.replace(store.address("nowhere/warehouse"), f"{store.scheme}://no-such-place/warehouse"))
    assert "no-such-place" in failed(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"adls.account-key": "c2VjcmV0"}, "AuthorizationFailure"),
        ({"adls.account-key": "no base64"}, "Base64"),
        ({"adls.account-key": None}, "authentication is not permitted"),
        ({"adls.account-name": None}, "state the storage account: adls.account-name"),
    ],
    ids=["wrong key", "broken key", "no key", "no account"],
)
def test_credentials_of_azure(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with azure_store() as store:
        land(store, "p/landing/1.jsonl", event("c", product(1)))
        assert message in failed(project(tmp_path, store, "p", **change))


def test_landing_in_a_container_of_an_account(tmp_path: Path) -> None:
    with azure_store() as store:
        config = project(tmp_path, store, "p")
        land(store, "p/landing/1.jsonl", event("c", product(1)))
        whole = f"abfss://box@{ACCOUNT}.dfs.core.windows.net/p/landing"
        config.write_text(config.read_text().replace(store.address("p/landing"), whole))
        assert the(run_once(load(config))).events == {"c": 1}
        table = find_table(open_catalog(load(config)), "shop.products")
        assert table is not None
        place = table.metadata_location.replace("abfs://box/", f"abfss://box@{ACCOUNT}.dfs.core.windows.net/")
        moved = open_table(place, properties=store.properties, relocate={"abfs://box": place.partition("/p/")[0]})
        assert moved.scan().count() == 1


@pytest.mark.parametrize(
    ("warehouse", "message"),
    [
        ("s3://bucket/a#b", "# has another meaning"),
        ("gs://bucket/a?b", "[?] has another meaning"),
        ("abfss://box@company.dfs.core.windows.net/w", "write abfss://box/w and adls.account-name: company"),
    ],
)
def test_warehouses_that_would_be_written_elsewhere(warehouse: str, message: str, tmp_path: Path) -> None:
    config = tmp_path / "nevermore.yaml"
    config.write_text(yaml.safe_dump({"catalog": {"warehouse": warehouse}, "tables": {}}))
    with pytest.raises(ConfigError, match=message):
        load(config)
