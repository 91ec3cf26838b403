"""Headers that were parsed lately are recognised, and nothing that is not one is taken for one."""

from io import BytesIO

import fastavro
import pytest

from nevermore.scan_core.metadata import avro_container
from nevermore.scan_core.metadata.avro_container import AvroError, read_header


def file_of(name: str, sync: bytes) -> bytes:
    out = BytesIO()
    schema = {"type": "record", "name": name, "fields": [{"name": "a", "type": "long"}]}
    fastavro.writer(out, schema, [{"a": 1}], sync_marker=sync)
    return out.getvalue()


def test_files_that_begin_alike_share_their_metadata_and_have_their_own_sync_markers() -> None:
    first, second = (read_header(file_of("alike", bytes([n]) * 16)) for n in (1, 2))
    assert second.metadata is first.metadata
    assert (first.sync, second.sync) == (b"\1" * 16, b"\2" * 16)
    assert first.end == second.end
    assert read_header(file_of("other", b"\1" * 16)).schema != first.schema


def test_a_file_that_ends_in_its_sync_marker_is_refused_though_its_beginning_is_known() -> None:
    data = file_of("short", b"\1" * 16)
    end = read_header(data).end
    with pytest.raises(AvroError, match="the header ends early"):
        read_header(data[: end - 1])


def test_few_headers_are_remembered() -> None:
    for number in range(30):
        read_header(file_of(f"number{number}", b"\1" * 16))
    assert len(avro_container._recent) == 8
