"""Deep and huge events: each is taken or refused for what it is, in bounded time and memory, and harms no other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nevermore.pipelines.decode.avro import reader_of
from nevermore.pipelines.decode.batches import from_documents
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats.registry import sniff
from nevermore.pipelines.jsonscan.value_kernels import MAX_DEPTH
from tests.pipelines.formats.deep_events import FORMATS, HUGE, REASON, SHAPES, deep, event, files, read, read_file

SECONDS = 600
"""By the clock; the process has limits of memory and processor time of its own."""
BYTES = 16 * 1024**2


@pytest.mark.each(2)
@pytest.mark.parametrize("name", FORMATS)
def test_an_event_at_the_limit_is_taken_and_one_beyond_it_is_refused(name: str) -> None:
    around = FORMATS[name][1]
    within, beyond = (event(name, deep("mixed", depth - around)) for depth in (MAX_DEPTH, MAX_DEPTH + 1))
    assert read(name, within) == (1, [])
    assert read(name, event(name, "null"), beyond, within) == (2, [REASON])


@pytest.mark.each(2)
@pytest.mark.parametrize("columns", [3, 2_000])
def test_the_limit_does_not_depend_on_the_columns_of_other_events(columns: int) -> None:
    """Rows with very many members are scanned by another kernel."""
    others = [event("debezium-json", json.dumps({"a": 1})).replace(b'"v"', f'"v{i}"'.encode()) for i in range(columns)]
    beyond = event("debezium-json", deep("lists", MAX_DEPTH - 1))
    assert REASON in read("debezium-json", beyond, *others)[1]


@pytest.mark.parametrize(
    ("name", "layout", "content"), [pytest.param(*file, id=file[0]) for file in files(deep("lists", 50_000))]
)
def test_a_deep_event_in_a_file_does_not_touch_its_neighbours(
    name: str, layout: str | None, content: bytes, tmp_path: Path
) -> None:
    assert read_file(tmp_path, content, layout) == (2, [REASON]), name


@pytest.mark.parametrize("shape", HUGE)
def test_a_huge_value_is_taken_or_refused_as_itself(shape: str) -> None:
    taken, reasons = read("rows", event("rows", HUGE[shape](200_000)))
    assert taken + len(reasons) == 1
    assert all(reason.startswith("column v: ") for reason in reasons)


def test_a_document_that_never_ends_is_passed_in_linear_time(tmp_path: Path) -> None:
    open_ended = event("debezium-json", "@").split(b"@")[0] + b'{"a":\n' * 50_000
    good = event("debezium-json", "null")
    taken, reasons = read_file(tmp_path, b"\n".join((open_ended, good, good, b"")), "documents")
    assert (taken, len(reasons)) == (2, 1)


def test_events_whose_format_cannot_be_told_as_they_are_too_deep_say_so() -> None:
    with pytest.raises(SourceError, match=r"no known format \(1 of them nested too deeply: more than 256 levels\)"):
        sniff(from_documents([event("canal-json", deep("lists", 50_000))]))


def test_an_avro_schema_that_is_too_deep_is_refused_with_the_limit() -> None:
    schema = '{"type":"record","name":"r","fields":[{"name":"v","type":' + '{"type":"array","items":' * 50_000
    with pytest.raises(SourceError, match="nested too deeply: more than 64 levels"):
        reader_of(schema + '"int"' + "}" * 50_000 + "}]}")


def run(shape: str, *sizes: int) -> list[dict[str, tuple[int, list[str]]]]:
    command = [sys.executable, "-m", "tests.pipelines.formats.deep_events", shape, *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    found: list[dict[str, tuple[int, list[str]]]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_deep_events_of_every_format_and_layout(shape: str) -> None:
    depths = [*range(MAX_DEPTH - 5, MAX_DEPTH + 3), 1_000, 50_000, 1_000_000]
    for depth, found in zip(depths, run(shape, *depths), strict=True):
        for name, (taken, reasons) in found.items():
            around = 2 if name.startswith("file: ") else FORMATS[name][1]
            expected = (3, []) if depth + around <= MAX_DEPTH else (2, [REASON])
            assert (taken, reasons) == expected, (name, depth)


@pytest.mark.slow
@pytest.mark.parametrize("shape", HUGE)
def test_huge_events_of_every_format_and_layout(shape: str) -> None:
    for name, (taken, reasons) in run(shape, BYTES)[0].items():
        assert taken + len(reasons) == 3, name
        assert taken >= 2, name
        assert not [reason for reason in reasons if "JSON" in reason or "deep" in reason], name
