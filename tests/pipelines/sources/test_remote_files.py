"""Event files on an object store: a real S3 endpoint (moto's server on loopback), reached as the catalog says."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.config.project import Config, load
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.maintain.replay import resync_from
from nevermore.pipelines.sources import file_listing
from nevermore.pipelines.sources.file_listing import RemoteFiles
from nevermore.pipelines.sources.file_options import FileOptions
from nevermore.pipelines.sources.files import discover
from tests.support.object_server import properties_of, serving, store_of


@pytest.fixture(scope="module")
def properties() -> Iterator[dict[str, str]]:
    with serving() as endpoint:
        settings = properties_of(endpoint)
        store = store_of(settings)
        store.create_dir("lake")
        files = {
            "in/a/1.jsonl": b'{"op":"c","id":1}\n',
            "in/b/2.jsonl.gz": gzip.compress(b'{"op":"c","id":2}\n'),
            "in/b/3.csv": b"op,id\nc,3\n",
            "in/b/c/4.jsonl": b'{"op":"d","id":1}\n',
            "in/_SUCCESS": b"",
        }
        for name, content in files.items():
            with store.open_output_stream(f"lake/{name}", compression=None) as stream:
                stream.write(content)
        yield settings


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("s3://lake/in/**/*", ["a/1.jsonl", "b/2.jsonl.gz", "b/3.csv", "b/c/4.jsonl"]),
        ("s3a://lake/in/*/*", ["a/1.jsonl", "b/2.jsonl.gz", "b/3.csv"]),
        ("s3://lake/in/b", ["2.jsonl.gz", "3.csv"]),
        ("s3://lake/in/[!b]/?.jsonl", ["a/1.jsonl"]),
        ("s3://lake/in/a/1.jsonl", ["1.jsonl"]),
    ],
)
def test_patterns_mean_on_an_object_store_what_they_mean_in_folders(
    pattern: str, names: list[str], properties: dict[str, str]
) -> None:
    remote = RemoteFiles(properties)
    batches = list(discover([pattern], filesystem=remote))
    assert [name for b in batches for name in b.raw.source_file.to_pylist()] == names
    assert list(discover([pattern], batches[-1].position_after, filesystem=remote)) == []


class Breaking(RemoteFiles):
    """A store whose answers break off."""


class BreakingFile:
    def __init__(self, file: Any, *breaks: str) -> None:
        self.file, self.breaks = file, list(breaks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def read_at(self, length: int, offset: int) -> bytes:
        how = self.breaks.pop(0) if self.breaks else ""
        if how == "error":
            raise OSError("curlCode: 18, Transferred a partial file")
        data: bytes = self.file.read_at(length, offset)
        return data[: len(data) // 2] if how == "cut" else data


@pytest.mark.parametrize("how", ["error", "cut"])
@pytest.mark.parametrize("name", ["a/1.jsonl", "b/2.jsonl.gz", "b/3.csv"])
def test_an_answer_that_breaks_off_is_read_again(
    name: str, how: str, properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"s3://lake/in/{name}"
    expected = [b.raw.source_offset.to_pylist() for b in discover([path], filesystem=RemoteFiles(properties))]
    monkeypatch.setattr(file_listing, "_PAUSE_SECONDS", 0)
    breaks = iter([[how], []])
    monkeypatch.setattr(Breaking, "open_input_file", lambda self, at: BreakingFile(
        RemoteFiles.open_input_file(self, at), *next(breaks, [])
    ))  # fmt: skip
    found = list(discover([path], filesystem=Breaking(properties)))
    assert [b.raw.source_offset.to_pylist() for b in found] == expected


def test_an_answer_that_breaks_off_for_ever_is_an_error(
    properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_listing, "_PAUSE_SECONDS", 0)
    monkeypatch.setattr(Breaking, "open_input_file", lambda self, at: BreakingFile(
        RemoteFiles.open_input_file(self, at), *["error"] * 9
    ))  # fmt: skip
    with pytest.raises(SourceError, match=r"a/1\.jsonl.*partial file"):
        list(discover(["s3://lake/in/a/1.jsonl"], filesystem=Breaking(properties)))


def test_what_is_not_there_is_named(properties: dict[str, str]) -> None:
    for pattern, message in (("s3://lake/none/*", "no folder"), ("s3://lake/in/*.csv", "no file matches")):
        with pytest.raises(SourceError, match=message):
            list(discover([pattern], filesystem=RemoteFiles(properties)))
    with pytest.raises(SourceError, match="cannot reach odd://x"):
        list(discover(["odd://x/*"]))


def test_sources_are_reached_by_the_properties_of_the_catalog(properties: dict[str, str], tmp_path: Path) -> None:
    document = {
        "catalog": {**properties},
        "tables": {
            "shop.t": {
                "source": {"type": "files", "path": "s3://lake/in/**/*", "format": "rows"},
                "key": ["id"],
                "types": {"id": "long"},
            }
        },
    }
    (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump(document))
    config = load(tmp_path / "nevermore.yaml")
    assert run_once(config).exit_code == 0
    assert _ids(config) == [2, 3]


def test_a_full_load_is_reached_by_the_properties_of_the_catalog(properties: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "1.jsonl").write_text('{"op":"c","id":7}\n')
    table = {"source": {"type": "files", "path": "landing/*", "format": "rows"}, "key": ["id"], "types": {"id": "long"}}
    (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump({"catalog": {**properties}, "tables": {"shop.t": table}}))
    config = load(tmp_path / "nevermore.yaml")
    assert run_once(config).exit_code == 0
    resync_from(open_catalog(config), config, "shop.t", ("s3://lake/in/b/2.jsonl.gz", "s3://lake/in/a/*"))
    assert _ids(config) == [1, 2]


@pytest.mark.parametrize("key", ["odd/a//1.jsonl", "odd//1.jsonl", "odd/a///b/1.jsonl"])
def test_an_object_whose_name_has_an_empty_part_is_not_left_out(properties: dict[str, str], key: str) -> None:
    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
    made = boto3.client("s3", endpoint_url=properties["s3.endpoint"], **keys)
    made.put_object(Bucket="lake", Key="odd/plain.jsonl", Body=b'{"op":"c","id":1}\n')
    made.put_object(Bucket="lake", Key="odd/marker//", Body=b"")
    remote = RemoteFiles(properties)
    assert len(list(discover(["s3://lake/odd/**/*"], filesystem=remote))) == 1
    made.put_object(Bucket="lake", Key=key, Body=b'{"op":"c","id":2}\n')
    try:
        with pytest.raises(SourceError, match=f"s3://lake/{key} has an empty part in its name"):
            list(discover(["s3://lake/odd/**/*"], filesystem=remote))
        assert len(list(discover(["s3://lake/odd/*.csv", "s3://lake/odd/p*"], filesystem=remote))) == 1
    finally:
        made.delete_object(Bucket="lake", Key=key)


@pytest.mark.parametrize("unreadable", ["stop", "quarantine"])
def test_an_object_that_is_replaced_while_it_is_read_is_not_mixed_with_the_new_one(
    properties: dict[str, str], unreadable: str
) -> None:
    store, name = store_of(properties), f"lake/replaced/{unreadable}.jsonl"

    def put(text: str) -> None:
        with store.open_output_stream(name, compression=None) as stream:
            stream.write("".join(f'{{"op":"c","id":{i},"n":"{text * 100}"}}\n' for i in range(20_000)).encode())

    options = FileOptions(batch_bytes=200_000, unreadable=unreadable)
    remote = RemoteFiles(properties)
    put("old")
    batches = discover([f"s3://{name}"], options=options, filesystem=remote)
    read = [next(batches)]
    put("new")
    with pytest.raises(SourceError, match="was replaced while it was read"):
        read.extend(batches)
    assert not any(b"new" in document for batch in read for document in batch.raw.documents.to_pylist())
    again = discover([f"s3://{name}"], read[-1].position_after, options, filesystem=remote)
    assert sum(batch.raw.num_events for batch in again) == 20_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("plain.jsonl.gz", b'{"op":"c","id":1}\n', "compressed with gzip, but it is not compressed"),
        (
            "gzip.jsonl.zst",
            gzip.compress(b'{"op":"c","id":1}\n', mtime=0),
            "compressed with zstd, but it is compressed with gzip",
        ),
        ("cut.jsonl.gz", gzip.compress(b'{"op":"c","id":1}\n' * 100)[:-10], "Truncated compressed stream"),
    ],
)
def test_a_name_of_another_compression_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message) as raised:
        list(discover([f"{tmp_path}/*"]))
    assert ("give it the right name" in str(raised.value)) == ("compressed with" in message)


def _ids(config: Config) -> list[int]:
    table = find_table(open_catalog(config), "shop.t")
    assert table is not None
    ids: list[int] = live_rows(table.metadata_location.removeprefix("file://")).column("id").to_pylist()
    return sorted(ids)
