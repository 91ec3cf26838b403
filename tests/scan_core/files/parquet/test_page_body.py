from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore.scan_core.files.parquet.file_layout import PageFacts, page_facts, page_header
from nevermore.scan_core.files.parquet.footer import DATA_PAGE
from nevermore.scan_core.files.parquet.thrift import I32Value, write_struct


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_values_of_a_page_are_those_of_its_whole_header(tmp_path: Path, version: str, *, checksums: bool) -> None:
    table = pa.table({"a": pa.array(range(30_000), pa.int64())})
    options = {"use_dictionary": False, "data_page_size": 20_000, "data_page_version": version}
    pq.write_table(table, tmp_path / "f.parquet", write_page_checksum=checksums, **options)
    data, position = (tmp_path / "f.parquet").read_bytes(), 4
    seen = []
    while len(seen) < 3:
        found = page_header(data[position:])
        assert found is not None
        header, begin = found
        details = header[5 if header[1] == DATA_PAGE else 8]
        rows, encoding = (None, details[2]) if header[1] == DATA_PAGE else (details[3], details[4])
        wanted = PageFacts(header[1], header[2], header[3], details[1], encoding, rows, begin, checksum=header.get(4))
        assert page_facts(data[position:]) == wanted
        assert page_facts(memoryview(data)[position:]) == wanted
        seen.append(wanted)
        position += begin + header[3]


@pytest.mark.parametrize("cut", range(12))
def test_header_that_ends_early_tells_no_values(cut: int) -> None:
    values = {1: I32Value(300_000), 2: I32Value(0), 3: I32Value(3), 4: I32Value(3)}
    header = write_struct({1: I32Value(0), 2: I32Value(70), 3: I32Value(60), 5: values})
    assert page_facts(header) == PageFacts(0, 70, 60, 300_000, 0, None, len(header))
    assert page_facts(header[:cut]) is None


@pytest.mark.parametrize("count", [-1, -(2**31), 2**40])
def test_a_negative_count_is_none(count: int) -> None:
    numbers = {1: I32Value(count), 2: I32Value(0), 3: I32Value(3), 4: I32Value(3)}
    header = write_struct({1: I32Value(0), 2: I32Value(70), 3: I32Value(60), 5: numbers})
    assert page_facts(header) == (None if count < 0 else PageFacts(0, 70, 60, count, 0, None, len(header)))
