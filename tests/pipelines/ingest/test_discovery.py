"""Configs for folders and object stores that were looked into run as written."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load
from nevermore.pipelines.ingest.discovery import discover
from nevermore.pipelines.ingest.feed_run import run_once
from tests.pipelines.project import Project, event, product
from tests.support.object_server import properties_of, serving, store_of
from tests.support.rest_catalog import serving_catalog

EVENTS = "".join(
    json.dumps(
        {"op": "c", "before": None, "after": {"id": i, "name": "a"}, "source": {"schema": "shop", "table": table}}
    )
    + "\n"
    for i in range(3)
    for table in ("products", "orders")
)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def init(folder: Path, address: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert run("init", "--from", address, "--dir", str(folder), "--json") == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_the_config_of_a_folder_runs_as_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    landing = tmp_path / "landing"
    for folder in ("feed", "clicks/day=2026-01-01", "clicks/day=2026-01-02", "odd folder"):
        (landing / folder).mkdir(parents=True)
    (landing / "feed" / "1.jsonl").write_text(EVENTS)
    for day in (1, 2):
        rows = pa.table({"op": ["I", "U"], "click_id": [day, day], "at": ["x", "y"]})
        pq.write_table(rows, landing / f"clicks/day=2026-01-0{day}" / "part.parquet")
    (landing / "odd folder" / "a.csv").write_text("op,what\nI,1\n")
    (landing / "README.txt").write_text("no events")
    told = init(tmp_path, str(landing), capsys)
    assert {t["name"]: (t["key"], t["ready"]) for t in told["tables"]} == {
        "landing.clicks": (["click_id"], True),
        "shop.products": (["id"], True),
        "shop.orders": (["id"], True),
        "landing.odd_folder": (["?"], False),
    }
    assert run("doctor", "--config", str(tmp_path / "nevermore.yaml")) == 0
    assert not (tmp_path / "warehouse").exists()
    text = (tmp_path / "nevermore.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=nevermore.schema.json\n")
    jsonschema.validate(yaml.safe_load(text), json.loads((tmp_path / "nevermore.schema.json").read_text()))
    report = run_once(load(tmp_path / "nevermore.yaml"))
    assert report.exit_code == 0
    assert {t.table: t.events for t in report.tables} == {
        "landing.clicks": {"c": 2, "u": 2},
        "shop.products": {"c": 3},
        "shop.orders": {"c": 3},
    }


def test_the_config_of_an_object_store_runs_as_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with serving() as endpoint:
        store = store_of(properties_of(endpoint))
        store.create_dir("bucket/discovered/feed")
        with store.open_output_stream("bucket/discovered/feed/1.jsonl") as file:
            file.write(EVENTS.encode())
        address = f"s3://bucket/discovered?endpoint={endpoint}&region=us-east-1"
        told = init(tmp_path, address, capsys)
        assert [t["name"] for t in told["tables"]] == ["shop.products", "shop.orders"]
        path = tmp_path / "nevermore.yaml"
        assert "testing" not in path.read_text()
        path.write_text(path.read_text().replace("warehouse: warehouse ", "warehouse: s3://bucket/warehouse "))
        assert run("doctor", "--config", str(path)) == 0
        assert run_once(load(path)).exit_code == 0
        assert not [f for f in store.get_file_info(_all("bucket/warehouse")) if "doctor" in f.path]
        path.write_text(path.read_text().replace("s3://bucket/warehouse ", "s3://absent/warehouse "))
        capsys.readouterr()
        assert run("doctor", "--config", str(path), "--json") == 1
        assert "a file in s3://absent/warehouse cannot be written" in capsys.readouterr().out


def _all(folder: str) -> Any:
    import pyarrow.fs

    return pyarrow.fs.FileSelector(folder, recursive=True)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ftp://host/x", "not a known kind of source"),
        ("s3://bucket/x?secret-access-key=abc", "environment variable"),
        ("kafka:///topic", "name a broker"),
        ("nowhere", "there is no folder nowhere"),
        ("empty", "has no event files"),
        ("broken", "broken"),
    ],
)
def test_what_cannot_be_looked_into_is_said(
    address: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.jsonl").write_bytes(b"\x00\xff\n")
    assert run("init", "--from", address) in {1, 2}
    told = capsys.readouterr()
    assert message in told.err
    assert "abc" not in told.err
    assert not (tmp_path / "nevermore.yaml").exists()


def test_names_are_distinct(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.jsonl").write_text(EVENTS)
    (tmp_path / "n").mkdir()
    sources = discover(str(tmp_path), tmp_path)
    assert len(sources) == 2
    main_names = run("init", "--from", str(tmp_path), "--dir", str(tmp_path))
    assert main_names == 0
    assert set(load(tmp_path / "nevermore.yaml").tables) == {
        "shop.products",
        "shop.orders",
        "shop.products_2",
        "shop.orders_2",
    }


def test_the_warehouse_of_a_rest_catalog_is_said_to_be_untried_until_there_is_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "1.jsonl").write_text(EVENTS)
    source = {"type": "files", "path": "*.jsonl", "format": "debezium-json"}
    with serving_catalog(tmp_path) as server:
        document = {"catalog": server.properties, "tables": {"shop.products": {"source": source, "key": ["id"]}}}
        (tmp_path / "nevermore.yaml").write_text(json.dumps(document))

        def warehouse() -> dict[str, str]:
            capsys.readouterr()
            run("doctor", "--config", str(tmp_path / "nevermore.yaml"), "--json")
            findings = map(json.loads, capsys.readouterr().out.splitlines())
            return next(finding for finding in findings if finding["what"] == "warehouse")

        before = warehouse()
        assert (before["status"], before["found"][:9]) == ("warning", "not tried")
        assert run_once(load(tmp_path / "nevermore.yaml")).exit_code == 0
        after = warehouse()
        assert (after["status"], "with the rights of that table" in after["found"]) == ("ok", True)
        server.is_down = True
        assert warehouse()["status"] == "warning"


@pytest.mark.slow
def test_rights_that_a_catalog_lends_with_a_table_are_enough_for_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / "1.jsonl").write_text(EVENTS)
    source = {"type": "files", "path": "*.jsonl", "format": "debezium-json"}
    with (
        serving() as endpoint,
        serving_catalog(tmp_path, warehouse="s3://bucket/lent", lent=properties_of(endpoint)) as server,
    ):
        store_of(properties_of(endpoint)).create_dir("bucket/lent")
        document = {"catalog": server.properties, "tables": {"shop.products": {"source": source, "key": ["id"]}}}
        path = tmp_path / "nevermore.yaml"
        path.write_text(json.dumps(document))
        for command in (
            "ingest",
            "doctor",
            "check",
            "scan shop.products",
            "compact shop.products --all",
            "verify shop.products",
        ):
            assert run(*command.split(), "--config", str(path)) == 0, (command, capsys.readouterr())


SECRETS = (
    "kafka://127.0.0.1:1/t?sasl.password=hunt3rX",
    "kafka://127.0.0.1:1/t?sasl.jaas.config=hunt3rX",
    "kafka://127.0.0.1:1/t?sasl.oauthbearer.config=hunt3rX",
    "kafka://127.0.0.1:1/t?ssl.key.pem=hunt3rX",
    "kafka://127.0.0.1:1/t?registry=http://u:hunt3rX@127.0.0.1:1",
    "kafka://127.0.0.1:1/t?registry_user=u:hunt3rX",
    "kafka://127.0.0.1:1/t?registry_token=hunt3rX",
    "s3://bucket/x?secret-access-key=hunt3rX",
    "s3://bucket/x?proxy-uri=http://u:hunt3rX@127.0.0.1:1",
    "abfs://c/x?connection-string=AccountKey%3DhHunt3rX",
    "abfs://c/x?account-key=hunt3rX",
)


@pytest.mark.parametrize("address", SECRETS)
def test_a_secret_must_be_the_name_of_a_variable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    assert run("init", "--from", address, "--dir", str(tmp_path)) == 2
    said = capsys.readouterr().err
    assert "would be written to the config" in said
    assert "hunt3rX" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("address", ["kafka://u:hunt3rX@127.0.0.1:1/t", "host=127.0.0.1 user=u password=hunt3rX"])
def test_an_address_that_is_wrong_does_not_show_its_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    assert run("init", "--from", address, "--dir", str(tmp_path)) in {1, 2}
    assert "hunt3rX" not in capsys.readouterr().err


@pytest.mark.parametrize("address", ["", " ", "file://", "s3://", "s3:///x"])
def test_an_address_without_a_place_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    assert run("init", "--from", address, "--dir", str(tmp_path)) == 2
    assert "name a folder, or a bucket" in capsys.readouterr().err


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"key": ["idd"]}, "its key was (id) and is now (idd)"),
        ({"key": ["id", "name"]}, "its key was (id) and is now (id, name)"),
        (
            {"partition_by": ["bucket(2, id)"]},
            "partition_by was [] when the table was created and is now [bucket[2](id)]",
        ),
        ({"soft_delete": True}, "soft_delete was false when the table was created and is now true"),
        ({"order_by": ["name"]}, None),  # the position ordered the changes so far: no other column contradicts it
    ],
    ids=["misspelled", "wider key", "partitions", "soft", "order"],
)
def test_doctor_and_ingest_refuse_the_same_of_an_existing_table(
    tmp_path: Path, option: dict[str, Any], said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project(tmp_path)
    project.land("1.jsonl", [event("c", product(1))])
    project.run()
    path = tmp_path / "nevermore.yaml"
    config = yaml.safe_load(path.read_text())
    config["tables"]["shop.products"] |= option
    path.write_text(yaml.safe_dump(config))
    for command in ("doctor", "ingest"):
        capsys.readouterr()
        code = run(command, "--config", str(path))
        told = capsys.readouterr()
        assert bool(code) == bool(said)
        assert (said or "") in told.out + told.err
