"""Keys and values in turn, over several lines each: what is no whole pair is told, and shifts no other."""

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from nevermore.pipelines.sources.file_documents import NO_PAIRS, NO_VALUE
from nevermore.pipelines.sources.file_options import FileOptions
from nevermore.pipelines.sources.file_position import FilePosition
from nevermore.pipelines.sources.files import UNFINISHED, discover
from tests.pipelines.sources.folder_reader import Reader, events_of

NAME = "a.json"


def key(number: int) -> str:
    return json.dumps({"id": number}, indent=1) + "\n"


def value(number: int) -> str:
    return json.dumps({"op": "c", "after": {"id": number, "tags": [{"t": 1}]}}, indent=1) + "\n"


def pairs(*numbers: int) -> str:
    return "".join(key(number) + value(number) for number in numbers)


class Run:
    """One run over the folder: ids of the pairs read, what was rejected, what was left for later."""

    def __init__(self, reader: Reader, *, report_incomplete: bool = False) -> None:
        position = None if reader.position is None else FilePosition.from_json(reader.position)
        self.ids: list[int] = []
        self.rejected: list[dict[str, Any]] = []
        self.left: dict[str, int] = {}
        options = FileOptions(layout="keyed-documents", report_incomplete=report_incomplete)
        for batch in discover([str(reader.folder / "*")], position, options, on_skipped=self._leave):
            for _, _, (own_key, own_value) in events_of(batch.raw):
                assert json.loads(own_key)["id"] == json.loads(own_value)["after"]["id"]
                self.ids.append(json.loads(own_key)["id"])
            self.rejected += batch.raw.rejected.table.to_pylist()
            reader.position = batch.position_after.to_json()

    def _leave(self, reason: str, count: int) -> None:
        self.left[reason] = count

    @property
    def told(self) -> list[tuple[str, int, str]]:
        return [(row["source_file"], row["source_offset"], row["reason"]) for row in self.rejected]


@pytest.mark.parametrize("rest", [key(3), key(3)[:-3], key(3) + value(3)[:-5]], ids=["key", "half key", "half value"])
@pytest.mark.parametrize("before", [(), (1, 2)], ids=["alone", "behind pairs"])
def test_a_pair_that_is_not_whole_waits_and_then_is_rejected(
    reader: Reader, before: tuple[int, ...], rest: str
) -> None:
    reader.write(NAME, pairs(*before) + rest)
    first = Run(reader)
    assert (first.ids, first.told, first.left) == ([*before], [], {UNFINISHED: 1})
    reader.write("b.json", pairs(9))
    second = Run(reader, report_incomplete=not before)  # as a file that is quiet for long
    reason = NO_VALUE if rest == key(3) else NO_PAIRS
    assert (second.ids, second.told) == ([9], [(NAME, len(before) + 1, reason)])
    assert second.rejected[0]["raw"].decode() == rest
    assert ((again := Run(reader)).told, again.ids) == ([], [])
    reader.write(NAME, (key(3) + value(3))[len(rest) :] + pairs(4), "a")
    assert ((last := Run(reader)).ids, last.told) == ([3, 4], [])


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("broken", ['{"id": 2\n', '{"id" 2}\n', "}\n", "x\n", '{"id": 2]\n', '{"id": tru}\n'])
@pytest.mark.parametrize("place", ["key", "value"])
def test_behind_a_broken_object_nothing_is_taken_for_a_pair(
    reader: Reader, place: str, broken: str, compress: Callable[[bytes], bytes]
) -> None:
    odd = broken + value(2) if place == "key" else key(2) + broken
    data = (pairs(0, 1) + odd + pairs(3, 4)).encode()
    reader.write(NAME, compress(data))
    runs = [Run(reader), Run(reader)]
    assert [found for run in runs for found in run.ids] == [0, 1]
    assert [told for run in runs for told in run.told] == [(NAME, 3, NO_PAIRS)]
    assert [row["raw"] for run in runs for row in run.rejected] == [odd.encode() + pairs(3, 4).encode()]


def test_an_odd_rest_of_a_compressed_file_is_rejected_at_once(reader: Reader) -> None:
    reader.write(NAME, gzip.compress((pairs(1) + key(2)).encode()))
    assert ((run := Run(reader)).ids, run.told) == ([1], [(NAME, 2, NO_VALUE)])
