"""Files that were read before are known again: renamed, re-delivered, replaced, older than the ledger."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nevermore.pipelines.errors import PositionLostError
from nevermore.pipelines.sources import file_changes, file_position
from nevermore.pipelines.sources.file_position import FilePosition
from nevermore.pipelines.sources.files import discover
from tests.pipelines.project import Project
from tests.pipelines.sources.folder_reader import Reader, Seen, events_of, lines, numbers


def test_renamed_and_re_delivered_files_are_known(reader: Reader) -> None:
    reader.write("a", lines(1, 2))
    reader.write("b", lines(3))
    reader.run()
    (reader.folder / "a").rename(reader.folder / "z")
    assert reader.run() == []
    reader.write("a", lines(1, 2))
    reader.write("b", lines(3))
    assert reader.run() == []


def test_re_delivered_file_under_a_new_name_is_left_out_and_told(reader: Reader) -> None:
    reader.write("a", lines(1, 2))
    reader.run()
    reader.write("b", lines(1, 2))
    told: list[tuple[str, int]] = []
    assert reader.run(on_skipped=lambda reason, count: told.append((reason, count))) == []
    assert told == [("re-delivered file", 1)]


def test_the_same_content_twice_in_a_run_may_be_two_changes(reader: Reader) -> None:
    """A row that is inserted, deleted and inserted again, by events without a time."""
    for name, line in [("1", lines(1)), ("2", lines(2)), ("3", lines(1))]:
        reader.write(name, line)
    assert numbers(reader.run()) == [1, 2, 1]


@pytest.mark.parametrize("name", ["a", "b"])
def test_files_alike_at_both_ends_are_different_files(reader: Reader, name: str) -> None:
    reader.write("a", lines(*range(1000, 3000)))
    reader.run()
    reader.write(name, lines(*range(1000, 1999), 7777, *range(2000, 3000)))
    assert len(reader.run(applied_lines=lambda names: dict.fromkeys(names, 2000) if name == "a" else {})) == 2000


def test_short_file_that_begins_like_one_read_long_ago_is_a_new_one(reader: Reader) -> None:
    for name, text in (("a", lines(1)), ("b", lines(2)), ("c", lines(1, 3))):
        reader.write(name, text)
        assert reader.run() != []
        (reader.folder / name).unlink()
    reader.write("d", lines(4))
    assert numbers(reader.run()) == [4]
    (reader.folder / "d").unlink()
    reader.write("e", lines(2, 5))
    assert numbers(reader.run()) == [2, 5]


def test_replaced_file_is_read_from_its_begin_whatever_the_change_log_has_of_the_old_one(reader: Reader) -> None:
    reader.write("a", lines(1, 2))
    reader.run()
    reader.write("a", lines(3))
    assert numbers(reader.run(applied_lines=lambda names: dict.fromkeys(names, 2))) == [3]


def test_other_content_under_an_old_name_is_new(reader: Reader) -> None:
    reader.write("a", lines(1, 2))
    reader.run()
    reader.write("a", lines(3))
    assert numbers(reader.run()) == [3]


def test_removed_files_change_nothing(reader: Reader) -> None:
    reader.write("a", lines(1))
    reader.write("b", lines(2))
    reader.run()
    (reader.folder / "a").unlink()
    assert reader.run() == []


def test_touched_files_are_known(reader: Reader) -> None:
    for n in range(5):
        reader.write(f"f{n}", lines(n))
    reader.run()
    for n in range(5):
        os.utime(reader.folder / f"f{n}")
    assert reader.run() == []


def test_files_older_than_the_ledger_are_looked_up_in_the_change_log(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_position, "MAX_NAMED_FILES", 2)
    monkeypatch.setattr(file_position, "MAX_FINGERPRINTS", 2)
    for n in range(9):
        reader.write(f"f{n}", lines(n, n + 10))
    reader.run()
    for n in range(9):
        os.utime(reader.folder / f"f{n}")
    reader.write("f0", lines(99), "a")
    reader.write("e9", lines(77))
    asked: list[str] = []

    def applied(names: Any) -> dict[str, int]:
        asked.extend(names)
        return {name: 2 for name in names if name.startswith("f")}

    assert numbers(reader.run(applied_lines=applied)) == [77, 99]
    assert "f0" in asked
    assert "f8" not in asked


@pytest.mark.slow
def test_position_stays_small_however_many_files(reader: Reader) -> None:
    for n in range(5000):
        reader.write(f"{n // 1000}/f{n:05}", lines(n))
    reader.pattern = "**/f*"
    assert numbers(reader.run(batch_rows=700)) == list(range(5000))
    assert reader.position is not None
    assert len(reader.position) < 64_000
    assert reader.run() == []


def test_arrivals_with_an_old_time_are_found(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = pa.fs.LocalFileSystem()
    reader.write("a", lines(1))
    reader.write("b", lines(2))
    for name, moment in (("a", 5_000), ("b", 5_010)):
        os.utime(reader.folder / name, (moment, moment))
    pattern = [f"{reader.folder}/*".replace("//", "/")]
    monkeypatch.setattr("nevermore.pipelines.sources.file_changes.list_files", lambda *_: remote_listing(reader.folder))
    (first,) = discover(pattern, None, filesystem=filesystem)
    assert numbers(list(events_of(first.raw))) == [1, 2]
    reader.write("aa", lines(3))
    os.utime(reader.folder / "aa", (5_005, 5_005))
    batches = list(discover(pattern, first.position_after, applied_lines=lambda _: {}))
    assert [numbers(list(events_of(b.raw))) for b in batches] == [[3]]
    assert list(discover(pattern, batches[0].position_after, applied_lines=lambda _: {})) == []


def remote_listing(folder: Path) -> list[Any]:
    """The folder as an object store lists it: modification times only."""
    from nevermore.pipelines.sources.file_listing import ListedFile

    return [ListedFile(p.name, str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.iterdir())]


@pytest.mark.parametrize("text", ["{}", "nonsense", '{"source":"files","version":2}', '{"source":"kafka","version":1}'])
def test_foreign_positions_are_refused(text: str) -> None:
    with pytest.raises(PositionLostError):
        FilePosition.from_json(text)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_deliveries_and_kills_give_every_line_once(tmp_path_factory: Any, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_changes, "DISTINCT_BYTES", 0)  # no two lines are alike here, however short
        _deliver_and_kill(Reader(tmp_path_factory.mktemp("landing")), data)


def _deliver_and_kill(reader: Reader, data: st.DataObject) -> None:
    seen: Seen = []
    written = 0
    for _ in range(data.draw(st.integers(1, 8))):
        action = data.draw(st.sampled_from(["new", "new", "grow", "rename", "again", "run", "run"]))
        present = sorted(p.name for p in reader.folder.iterdir())
        if action == "new" or not present:
            name = f"{data.draw(st.integers(0, 99)):02}-{written}"
            count = data.draw(st.integers(1, 6))
            reader.write(name, lines(*range(written, written + count)))
            written += count
        elif action == "grow":
            count = data.draw(st.integers(1, 3))
            reader.write(data.draw(st.sampled_from(present)), lines(*range(written, written + count)), "a")
            written += count
        elif action == "rename":
            name = data.draw(st.sampled_from(present))
            seen += reader.run()
            (reader.folder / name).rename(reader.folder / f"{data.draw(st.integers(0, 99)):02}-r{name}")
        elif action == "again":
            seen += reader.run()
            name = data.draw(st.sampled_from(present))
            reader.write(name, (reader.folder / name).read_bytes())
        else:
            seen += reader.run(stop_after=data.draw(st.integers(0, 3)), batch_rows=data.draw(st.integers(1, 4)))
    seen += reader.run()
    assert sorted(numbers(seen)) == list(range(written))


@pytest.mark.each(14)
@pytest.mark.parametrize(
    ("first", "late", "named"),
    [
        (["000001.jsonl", "000003.jsonl"], ["000002.jsonl"], ["000002.jsonl"]),
        (["a-9.jsonl", "a-11.jsonl"], ["a-10.jsonl"], ["a-9.jsonl", "a-10.jsonl"]),
        (["000001.jsonl", "000002.jsonl"], ["000003.jsonl"], []),
        (["9.jsonl"], ["10.jsonl"], []),
        (["9.jsonl", "10.jsonl"], [], ["9.jsonl"]),
        (["orders-3.jsonl"], ["customers-2.jsonl"], []),
        (["b/3.jsonl"], ["a/2.jsonl"], []),
        (["partition=0/t+0+010.jsonl", "partition=1/t+1+000.jsonl"], ["partition=0/t+0+020.jsonl"], []),
        (["t+0+10.jsonl", "t+2+0.jsonl", "t+10+0.jsonl"], ["t+0+20.jsonl", "t+2+5.jsonl"], []),
        (["t+0+0000000010.jsonl", "t+1+0000000000.jsonl"], ["t+0+0000000005.jsonl"], ["t+0+0000000005.jsonl"]),
        (["t-9-00000000000000000010.jsonl", "t-11-00000000000000000000.jsonl"], ["t-9-00000000000000000020.jsonl"], []),
        (["2026-01-11-000001.jsonl"], ["2026-01-10-000002.jsonl"], ["2026-01-10-000002.jsonl"]),
        (["2026-01-05T10:00:01+01:00.jsonl"], ["2026-01-05T09:59:59+01:00.jsonl"], ["2026-01-05T09:59:59+01:00.jsonl"]),
        (["2026-01-11-0000000001.jsonl"], ["2026-01-10-0000000002.jsonl"], ["2026-01-10-0000000002.jsonl"]),
        (
            ["orders-20260111_0000000001.jsonl"],
            ["orders-20260110_0000000002.jsonl"],
            ["orders-20260110_0000000002.jsonl"],
        ),
        (["000012-0000000100.jsonl"], ["000011-0000000200.jsonl"], ["000011-0000000200.jsonl"]),
        (["day=05/2.jsonl", "day=06/1.jsonl"], ["day=06/2.jsonl", "day=05/1.jsonl"], ["day=05/1.jsonl"]),
        (["2026-01-05T10:00:01.jsonl"], ["2026-01-05T09:59:59.jsonl"], ["2026-01-05T09:59:59.jsonl"]),
    ],
)
@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.usefixtures("engine")
def test_lower_numbers_that_are_read_late_are_named_by_the_run(
    tmp_path: Path, first: list[str], late: list[str], named: list[str], *, is_ordered: bool
) -> None:
    source = {"type": "files", "path": "landing/**/*.jsonl", "format": "debezium-json"}
    order = {"order_by": ["source.lsn"]} if is_ordered else {}
    project = Project(tmp_path, {"shop.t": {"source": source, "key": ["id"], **order}})
    found: list[str] = []
    for number, names in enumerate((first, late)):
        for name in names:
            (project.landing / name).parent.mkdir(exist_ok=True)
            row = {"id": name}
            project.land(name, [json.dumps({"op": "c", "after": row, "source": {"table": "t", "lsn": number}})])
        found += project.run().warnings
    told = [name for name in (*first, *late) if any(name in text and "order_by" in text for text in found)]
    assert told == ([] if is_ordered else named)
    assert bool(found) == bool(told)
