import random

import pytest

from nevermore.pipelines.sources.file_position import MAX_NAMED_FILES, FilePosition, ReadFile


def read(number: int, *, finished: bool = True, waiting: bool = False) -> ReadFile:
    return ReadFile(f"{number:04}.jsonl", 1, 1, 1, 1, f"{number:016x}", finished, waiting=waiting)


@pytest.mark.parametrize("seed", range(5))
def test_many_files_at_once_are_remembered_as_one_after_the_other(seed: int) -> None:
    draw = random.Random(seed)
    files = [read(draw.randrange(150), finished=draw.random() < 0.9, waiting=draw.random() < 0.1) for _ in range(400)]
    start = FilePosition().sweeping(5)
    one_by_one = start
    for file in files:
        one_by_one = one_by_one.with_files([file])
    cut = draw.randrange(400)
    assert start.with_files(files) == one_by_one
    assert start.with_files(files[:cut]).with_files(files[cut:]) == one_by_one


def test_last_files_are_known_by_name_earlier_ones_by_fingerprint_and_waiting_ones_for_ever() -> None:
    files = [read(0, waiting=True), read(1, finished=False), *(read(n) for n in range(2, 100))]
    position = FilePosition().sweeping(5).with_files(files)
    assert [f.name for f in position.named[:2]] == ["0000.jsonl", "0001.jsonl"]
    assert [f.name for f in position.named[2:]] == [f"{n:04}.jsonl" for n in range(100 - MAX_NAMED_FILES, 100)]
    assert len(position.fingerprints) == 98 - MAX_NAMED_FILES
    assert position.knows(read(2).fingerprint)
    assert (position.swept, position.highest) == ("0099.jsonl", "0099.jsonl")
    again = position.with_files([read(0)])
    assert again.named[0].name == "0001.jsonl"
    assert again.named[-1] == read(0)
