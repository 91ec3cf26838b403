"""What lies in a landing folder and is no file of events: refused by its name, never waited for."""

import gzip
import lzma
import os
import socket
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from nevermore.pipelines.config.project import load
from nevermore.pipelines.config.sources import FilesSource
from nevermore.pipelines.decode.schema_registry import SchemaFolder, SchemaKind
from nevermore.pipelines.errors import ConfigError, SourceError
from nevermore.pipelines.sources.file_listing import ListedFile, list_files, open_file
from nevermore.pipelines.sources.file_options import FileOptions
from tests.pipelines.project import Project, event, product, the
from tests.pipelines.sources.folder_reader import Reader, lines
from tests.support.bombs import write_avro


def make(kind: str, path: Path) -> None:
    match kind:
        case "FIFO":
            os.mkfifo(path)
        case "socket":
            here = Path.cwd()
            os.chdir(path.parent)
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path.name)
            os.chdir(here)
        case "device":
            path.symlink_to("/dev/zero")
        case "loop of symbolic links":
            path.symlink_to(path)
        case "link to a missing file":
            path.symlink_to("gone")
        case "link to a folder above":
            path.symlink_to(path.parent)


KINDS = ["FIFO", "socket", "device", "loop of symbolic links", "link to a missing file"]


@pytest.mark.parametrize("pattern", ["*", "b.jsonl", "**/*.jsonl"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_refused_by_name(reader: Reader, kind: str, pattern: str) -> None:
    reader.pattern = pattern
    reader.write("a.jsonl", lines(1))
    make(kind, reader.folder / "b.jsonl")
    with pytest.raises(SourceError, match=r"b\.jsonl") as caught:
        reader.run()
    assert kind in str(caught.value) or (kind, pattern) == ("link to a missing file", "b.jsonl")
    (reader.folder / "b.jsonl").unlink()
    reader.pattern = "*"
    assert len(reader.run()) == 1


def test_links_to_folders_above_are_refused_instead_of_followed_for_ever(reader: Reader) -> None:
    reader.pattern = "**/*.jsonl"
    reader.write("day/a.jsonl", lines(1))
    for name in ("one", "two"):
        make("link to a folder above", reader.folder / "day" / name)
    with pytest.raises(SourceError, match="link to one of its parent folders"):
        reader.run()


def test_links_to_files_and_to_other_folders_are_followed(
    reader: Reader, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "b.jsonl").write_text(lines(2))
    reader.write("a.jsonl", lines(1))
    (reader.folder / "folder").symlink_to(other)
    (reader.folder / "c.jsonl").symlink_to(other / "b.jsonl")
    reader.pattern = "**/*.jsonl"
    assert len(reader.run()) == 3


def test_a_fifo_that_took_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    os.mkfifo(path)
    for size in (10, 10**6):
        with pytest.raises(SourceError, match=r"a\.jsonl.*FIFO"):
            open_file(ListedFile("a.jsonl", str(path), size, 0))


def test_a_fifo_among_schemas_is_named_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "7.avsc")
    with pytest.raises(ConfigError, match=r"7\.avsc is not a plain file"):
        SchemaFolder(tmp_path).schema(7, SchemaKind.AVRO)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (lzma.compress(lines(1, 2).encode()), "compressed with xz"),
        (b"PK\x03\x04" + bytes(40), "a ZIP archive"),
        (b"ARROW1\0\0" + bytes(40), "an Arrow file"),
        (b"\xff\x06\x00\x00sNaPpY" + bytes(40), "compressed with snappy"),
        (lines(1, 2).encode("utf-16"), "convert it to UTF-8"),
        (b"\xfe\xff" + lines(1, 2).encode("utf-16-be"), "convert it to UTF-8"),
    ],
)
def test_files_of_another_kind_are_refused_by_what_they_are(tmp_path: Path, data: bytes, said: str) -> None:
    reader = Reader(tmp_path)
    reader.write("1.jsonl", data)
    with pytest.raises(SourceError, match=rf"cannot read .*1\.jsonl: it is .*{said}"):
        reader.run()


def test_columns_and_members_that_a_parquet_file_has_twice_are_named(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    one = pa.array([1])
    for array, name in ((one, "'id'"), (pa.StructArray.from_arrays([one, one], ["a", "a"]), "'id' with 'a'")):
        names = ["op", "id", "id" if array is one else "x"]
        pq.write_table(pa.Table.from_arrays([pa.array(["I"]), array, one], names=names), tmp_path / "1.parquet")
        with pytest.raises(SourceError, match=rf"1\.parquet: the Parquet file has {name} twice"):
            reader.run()


@pytest.mark.parametrize("kind", ["parquet", "avro"])
def test_compressed_files_of_columns_are_read_within_the_limit(tmp_path: Path, kind: str) -> None:
    reader = Reader(tmp_path)
    if kind == "parquet":
        pq.write_table(pa.table({"op": ["c"], "id": [1]}), tmp_path / "1")
    else:
        write_avro(tmp_path / "1", 1, "null", text="x")
    reader.write(f"1.{kind}.gz", gzip.compress((tmp_path / "1").read_bytes()))
    (tmp_path / "1").unlink()
    assert len(reader.run()) == 1
    options = FileOptions(batch_bytes=2**16)
    reader.write(f"2.{kind}.gz", gzip.compress(bytes(options.max_event_bytes + 1), 1))
    with pytest.raises(SourceError, match=rf"2\.{kind}\.gz: .*decompressed, the file has more than \d+ bytes"):
        reader.run(batch_bytes=options.batch_bytes)


@pytest.mark.parametrize("pattern", ["landing/*.jsonl", "landing/**/*.jsonl", "landing", "landing/1.jsonl"])
@pytest.mark.parametrize("name", ["a[1]", "a*", "[!b]", "{a,b}", "a b", "ü", "a'\"b", "$a&b;c", "a\\b", "a%b", "a:b"])
def test_names_of_folders_around_a_project_are_no_wildcards(tmp_path: Path, name: str, pattern: str) -> None:
    for number, folder in enumerate([name, "a1", "a2", "b"]):
        (tmp_path / folder).mkdir()
        project = Project(tmp_path / folder)
        project.land("1.jsonl", [event("c", product(number))])
    chosen = tmp_path / name
    config = yaml.safe_load((chosen / "nevermore.yaml").read_text())
    config["tables"]["shop.products"]["source"]["path"] = pattern
    (chosen / "nevermore.yaml").write_text(yaml.safe_dump(config))
    loaded = load(chosen / "nevermore.yaml")
    (source,) = (table.source for table in loaded.tables.values())
    assert isinstance(source, FilesSource)
    (found,) = list_files(source.path)
    assert found.path == str(chosen / "landing" / "1.jsonl")
    assert found.name == ("landing/1.jsonl" if pattern == "landing" else "1.jsonl")


def test_a_project_in_a_folder_with_wildcards_in_its_name_reads_its_own_events(tmp_path: Path) -> None:
    for number, folder in enumerate(["a*[1]{b}", "a1[1]{b}"]):
        (tmp_path / folder).mkdir()
        project = Project(tmp_path / folder)
        project.land("1.jsonl", [event("c", product(number))])
        assert project.run().exit_code == 0
        assert [row["id"] for row in project.rows()] == [number]


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    project = Project(tmp_path)
    (project.landing / os.fsdecode(b"\xff.jsonl")).write_text(event("c", product(1)))
    for _ in range(2):
        assert "\\xff.jsonl' is not UTF-8" in str(the(project.run()).error)
