"""Small event files that become very large: read in pieces within the memory limit, or refused by name."""

import gzip
from pathlib import Path

import pytest

from tests.support.bombs import MIB, PARQUET_BOMBS, run_limited, write_avro, write_parquet

BATCH = 16 * MIB
LIMIT = 16 * BATCH
IMPORTS = "from nevermore.pipelines.sources.files import discover\nfrom nevermore.pipelines.sources.file_options import FileOptions"
READ = "sum(b.raw.num_read for b in discover([{path!r}], options=FileOptions(batch_bytes={batch})))"
REFUSED = {"one list", "one large page", "list of equal numbers"}


def read_limited(path: Path) -> tuple[object, int, float]:
    return run_limited(IMPORTS, READ.format(path=str(path), batch=BATCH), 1000 * MIB)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "text" else pytest.mark.slow) for n in PARQUET_BOMBS]
)
def test_parquet_events_are_read_in_pieces_or_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "events.parquet"
    num_rows = write_parquet(path, *PARQUET_BOMBS[name]())
    found, grown, seconds = read_limited(path)
    if name in REFUSED:
        assert str(found).startswith("SourceError: cannot read ")
        assert "raise memory_limit_bytes" in str(found)
    else:
        assert found == num_rows
    assert grown < 1.25 * LIMIT
    assert seconds < 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "count", "text"), [("deflate", 600, "x" * MIB), ("zstandard", 600, "x" * MIB), ("deflate", 2_500_000, "")]
)
def test_an_avro_block_that_does_not_fit_is_refused(tmp_path: Path, codec: str, count: int, text: str) -> None:
    write_avro(tmp_path / "events.avro", count, codec, text=text)
    found, grown, seconds = read_limited(tmp_path / "events.avro")
    assert str(found).startswith("SourceError: cannot read ")
    assert "raise memory_limit_bytes" in str(found)
    assert grown < 1.25 * LIMIT  # half of the limit, which Python's zlib holds twice at its end
    assert seconds < 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin", "name"),
    [
        (b'{"a":"', "line.json.gz"),
        (b'[{"a":"', "array.json.gz"),
        (b'a,b\n"', "quoted.csv.gz"),
        (b"id\n", "long.csv.gz"),
    ],
)
def test_a_text_without_end_is_refused(tmp_path: Path, begin: bytes, name: str) -> None:
    with gzip.open(tmp_path / name, "wb", 1) as file:
        file.write(begin)
        for _ in range(512):
            file.write(b"x" * MIB)
    found, grown, seconds = read_limited(tmp_path / name)
    assert str(found).startswith("SourceError: cannot read ")
    assert "raise memory_limit_bytes" in str(found)
    assert grown < 2 * LIMIT
    assert seconds < 60


@pytest.mark.slow
@pytest.mark.parametrize("blank", [b"\n", b"\r\n"])
def test_very_many_blank_lines_take_little_time(tmp_path: Path, blank: bytes) -> None:
    with gzip.open(tmp_path / "blank.json.gz", "wb", 1) as file:
        file.write(b'{"a": 1}\n')
        for _ in range(512):
            file.write(blank * MIB)
        file.write(b'{"a": 2}\n')
    found, grown, seconds = read_limited(tmp_path / "blank.json.gz")
    assert found == 2
    assert grown < LIMIT
    assert seconds < 30
