"""Files that another process writes while they are read: up to the last whole event now, the rest later, each once."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipelines.sources.folder_reader import Reader, Seen

WRITER = """
import random, sys, time
data = open(sys.argv[1], "rb").read()
random.seed(int(sys.argv[3]))
with open(sys.argv[2], "wb", buffering=0) as out:
    at = read = 0
    while at < len(data):
        if at * 5 // len(data) > read:
            sys.stdin.readline()
            read += 1
        step = random.choice([1, 3, 17, 200, 4096])
        out.write(data[at:at + step])
        at += step
        time.sleep(random.choice([0, 0.001, 0.003, 0.01]))
"""
"""Writes in small parts, each fifth of the data once the reader has found some of what was there before."""


def event(number: int) -> str:
    return json.dumps({"n": number, "text": "x" * (number * 37 % 300)})


def json_number(value: object) -> int:
    return int(json.loads(str(value))["n"])


LAYOUTS: dict[str, tuple[Callable[[int], bytes], Callable[[object], int], dict[str, str]]] = {
    "a.jsonl": (lambda n: f"{event(n)}\n".encode(), json_number, {}),
    "a.crlf": (lambda n: f"{event(n)}\r\n".encode(), json_number, {}),
    "a.keyed": (
        lambda n: f'{{"k":{n}}}\t{event(n)}\n'.encode(),
        lambda pair: json_number(pair[1]),  # type: ignore[index]
        {"layout": "keyed-lines"},
    ),
    "a.framed": (lambda n: len(event(n)).to_bytes(4, "big") + event(n).encode(), json_number, {"layout": "framed"}),
    "a.csv": (lambda n: b"n,text\n" if n < 0 else f'{n},"a\n{n}"\n'.encode(), lambda row: int(row["n"]), {}),  # type: ignore[index]
}


def check_each_once(seen: Seen, number_of: Callable[[object], int], count: int) -> None:
    found = [number_of(value) for _, _, value in seen]
    assert found == list(range(count))
    offsets = [offset for _, offset, _ in seen]
    assert len(set(offsets)) == count


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_file_that_grows_at_any_byte_is_read_event_by_event(reader: Reader, name: str) -> None:
    write, number_of, options = LAYOUTS[name]
    parts = [write(n) for n in range(-1 if name == "a.csv" else 0, 40)]
    data, rng, at = b"".join(parts), random.Random(7), 0
    whole = 0
    seen: Seen = []
    while at < len(data):
        step = rng.choice([1, 2, 30, 400])
        reader.write(name, data[at : at + step], "a")
        at += step
        seen += reader.run(**options)
        while whole < len(parts) and sum(map(len, parts[: whole + 1])) <= at:
            whole += 1
        least = whole - (1 if name == "a.csv" else 0)
        assert least - 1 <= len(seen) <= least + 1  # the newline may be what is missing
        assert [number_of(value) for _, _, value in seen] == list(range(len(seen)))
    check_each_once(seen + reader.run(**options), number_of, 40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_file_that_a_process_writes_while_it_is_read_loses_and_doubles_nothing(
    tmp_path: Path, name: str, seed: int
) -> None:
    write, number_of, options = LAYOUTS[name]
    count = 20_000
    (tmp_path / "data").write_bytes(b"".join(write(n) for n in range(-1 if name == "a.csv" else 0, count)))
    landing = tmp_path / "landing"
    landing.mkdir()
    reader = Reader(landing)
    reader.write(name, b"")
    warm = Reader(tmp_path, "data")  # compiling takes longer than the writer
    warm.run(**options)
    seen: Seen = []
    command = [sys.executable, "-c", WRITER, str(tmp_path / "data"), str(landing / name), str(seed)]
    runs = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        while writer.poll() is None:
            before = len(seen)
            seen += reader.run(batch_rows=700, batch_bytes=50_000, **options)
            runs += len(seen) > before
            if len(seen) > before and runs <= 4:
                writer.stdin.write(b"\n")
                writer.stdin.flush()
    assert runs > 3
    check_each_once(seen + reader.run(**options), number_of, count)
