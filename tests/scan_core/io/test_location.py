"""Paths: parsing, relocation, and when two name one file."""

import pytest

from nevermore.scan_core.io.location import FileIOConfig, Location, PathMatch, parse_location, relocate, same_file
from nevermore.scan_core.model.errors import MalformedTableError

NOTHING = FileIOConfig()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/a/b", Location("", "", "/a/b")),
        ("data/x.parquet", Location("", "", "data/x.parquet")),
        ("file:/a/b", Location("file", "", "/a/b")),
        ("file:///a/b", Location("file", "", "/a/b")),
        ("file://localhost/a", Location("file", "", "/a")),
        ("s3a://bucket/k/x", Location("s3", "bucket", "/k/x")),
        ("S3N://bucket/k", Location("s3", "bucket", "/k")),
        ("hdfs://host:8020/w/x", Location("hdfs", "host:8020", "/w/x")),
    ],
)
def test_locations_are_parsed_into_scheme_authority_and_path(text: str, expected: Location) -> None:
    assert parse_location(text) == expected


@pytest.mark.parametrize(
    ("old", "new", "path", "expected"),
    [
        ("/warehouse/t", "/x", "/warehouse/t/data/a", "/x/data/a"),
        ("/warehouse/t/", "/x/", "/warehouse/t/data/a", "/x/data/a"),
        ("/warehouse/t", "/x", "/warehouse/tt/a", "/warehouse/tt/a"),
        ("s3://old/", "file:///new/", "s3a://old/k/a", "file:///new/k/a"),
        ("s3://old/", "file:///new/", "s3://other/k/a", "s3://other/k/a"),
        ("/warehouse", "/x", "hdfs://host/warehouse/a", "/x/a"),
        ("hdfs://host/warehouse", "/x", "/warehouse/a", "/x/a"),
        ("hdfs://host/warehouse", "/x", "hdfs://other/warehouse/a", "hdfs://other/warehouse/a"),
        ("s3://old/", "/x", "/local/a", "/local/a"),
        ("data/persistent", "/x", "data/persistent/a", "/x/a"),
        ("/warehouse/t", "/x", "/warehouse/t", "/x"),
    ],
)
def test_relocation_replaces_a_folder_above_the_path(old: str, new: str, path: str, expected: str) -> None:
    assert str(relocate(path, FileIOConfig(((old, new),)))) == expected


def test_relocation_prefers_the_first_pair_and_the_exact_scheme() -> None:
    io = FileIOConfig((("/warehouse/t", "/one"), ("/warehouse", "/two")))
    assert str(relocate("/warehouse/t/a", io)) == "/one/a"
    assert str(relocate("/warehouse/u/a", io)) == "/two/u/a"
    io = FileIOConfig((("/warehouse", "/lenient"), ("hdfs://h/warehouse", "/exact")))
    assert str(relocate("hdfs://h/warehouse/a", io)) == "/exact/a"


@pytest.mark.parametrize("path", ["/warehouse/t/../../etc/passwd", "/warehouse/t/data/..", "/warehouse/t/../t/x"])
def test_relocation_refuses_to_climb_out(path: str) -> None:
    with pytest.raises(MalformedTableError, match=r"climbs out"):
        relocate(path, FileIOConfig((("/warehouse/t", "/x"),)))


def test_a_path_with_a_nul_byte_is_malformed() -> None:
    with pytest.raises(MalformedTableError, match="NUL"):
        relocate("/a\0b", NOTHING)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("/warehouse/a", "/warehouse/a", PathMatch.EXACT),
        ("/warehouse/a", "hdfs://host/warehouse/a", PathMatch.RELOCATED),
        ("hdfs:/warehouse/a", "hdfs://host/warehouse/a", PathMatch.RELOCATED),
        ("file:/warehouse/a", "file:///warehouse/a", PathMatch.RELOCATED),
        ("s3a://b/k", "s3://b/k", PathMatch.RELOCATED),
        ("s3://b/k", "s3://c/k", PathMatch.NONE),
        ("file:///warehouse/a", "hdfs://host/warehouse/a", PathMatch.NONE),
        ("/warehouse/a", "/warehouse/b", PathMatch.NONE),
    ],
)
def test_rule_07_a_missing_scheme_or_authority_matches_any(left: str, right: str, expected: PathMatch) -> None:
    assert same_file(left, right, NOTHING) is expected
    assert same_file(right, left, NOTHING) is expected


def test_rule_07_paths_are_compared_after_relocation_on_both_sides() -> None:
    io = FileIOConfig((("/warehouse/t", "/here"),))
    assert same_file("/warehouse/t/a", "hdfs://host/warehouse/t/a", io) is PathMatch.RELOCATED
    assert same_file("/warehouse/t/a", "/here/a", io) is PathMatch.RELOCATED
