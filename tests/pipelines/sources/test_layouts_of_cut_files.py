"""What a file without `layout` gives does not depend on when it was looked at: cut at any byte, then whole."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.errors import SourceError
from tests.pipelines.sources.folder_reader import Reader


def pretty(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def flat(value: Any) -> str:
    return json.dumps(value) + "\n"


KEY, EVENT, ROW = {"id": 7}, {"op": "c", "before": None, "after": {"id": 7, "t": [{"a": 1}]}}, {"id": 7, "n": "x"}


def connect(name: str, payload: Any) -> dict[str, Any]:
    return {"schema": {"type": "struct", "name": name}, "payload": payload}


def bare(payload: Any) -> dict[str, Any]:
    return {"schema": {"type": "struct"}, "payload": payload}


FILES: dict[str, str] = {
    "lines": flat(EVENT) * 2,
    "rows": flat(ROW) * 2,
    "line without end": flat(ROW).strip(),
    "blank lines": "\n \n" + flat(EVENT) * 2,
    "comment": "/* a\n b */\n" + pretty(EVENT) * 2,
    "byte-order mark": "\ufeff" + pretty(EVENT),
    "keyed lines": f"{json.dumps(KEY)}\t{json.dumps(EVENT)}\n" * 2,
    "keyed rows": f"{json.dumps(KEY)}\t{json.dumps(ROW)}\n" * 2,
    "keyed Connect lines": f"{json.dumps(bare(KEY))}\t{json.dumps(bare(ROW))}\n" * 2,
    "documents": pretty(EVENT) * 2,
    "documents on a line": f"{json.dumps(EVENT)} {json.dumps(EVENT)}\n" * 2,
    "rows as documents": pretty(ROW) * 2,
    "Connect documents": pretty(connect("shop.orders.Envelope", EVENT)) * 2,
    "keyed documents": (pretty(KEY) + pretty(EVENT)) * 2,
    "keyed rows as documents": (pretty(KEY) + pretty(ROW)) * 2,
    "keyed Connect documents": (pretty(connect("a.Key", KEY)) + pretty(connect("a.Envelope", EVENT))) * 2,
    "keyed Connect rows": (pretty(connect("a.Key", KEY)) + pretty(connect("a.Value", ROW))) * 2,
    "keyed payloads": (pretty({"payload": KEY}) + pretty({"payload": EVENT})) * 2,
    "keyed payloads of rows": (pretty(bare(KEY)) + pretty(bare(ROW))) * 2,
    "keyed unwrapped rows": (pretty(KEY) + pretty({**ROW, "__op": "c"})) * 2,
    "array": json.dumps([EVENT, EVENT]),
    "pretty array": pretty([EVENT, EVENT]),
    "array, then a line": json.dumps([EVENT]) + "\n" + flat(EVENT),
    "empty array, then lines": "[]\n" + flat(EVENT) * 2,
    "list of objects on lines": '{"op":"c","columns":[\n{"a":1}\n],"n":1}\n' + pretty(EVENT),
    "value on the next line": '{"after":\n{"id":1}\n,"op":"c"}\n{"after":\n{"id":2}\n,"op":"c"}\n',
    "canal": pretty({"type": "INSERT", "data": [ROW], "database": "d", "table": "t"}) * 2,
}
REFUSED = {"rows as documents", "keyed rows as documents", "keyed payloads of rows"}


def found_in(reader: Reader, *, quiet: bool) -> list[Any] | None:
    """What is read; None if the file is refused."""
    try:
        return [value for _, _, value in reader.run(report_incomplete=quiet)]
    except SourceError as error:
        assert "options: {layout: ...}" in str(error)  # noqa: PT017 - it need not be raised
        return None


def whole(folder: Path, name: str) -> list[Any] | None:
    folder.mkdir()
    reader = Reader(folder)
    reader.write("f", FILES[name])
    return found_in(reader, quiet=True)


def cuts(name: str) -> Iterator[bytes]:
    data = FILES[name].encode()
    return (data[:at] for at in range(len(data)))


def check_cut(folder: Path, name: str, head: bytes, wanted: list[Any] | None, *, step: int = 0) -> None:
    folder.mkdir()
    reader = Reader(folder)
    reader.write("f", head)
    before = found_in(reader, quiet=False)
    assert before is not None or name in REFUSED
    data = FILES[name].encode()
    seen = before or []
    for at in range(len(head) + step, len(data), step or len(data)):
        reader.write("f", data[:at])
        seen += found_in(reader, quiet=False) or []
    reader.write("f", data)
    after = found_in(reader, quiet=False)
    time.sleep(0.01)  # a later time of the file system
    reader.write("g", "")
    rest = found_in(reader, quiet=True)  # what waited in "f" will not be finished any more
    after = None if after is None or rest is None else after + rest
    if wanted is None:
        assert (seen, after) == ([], None)
    else:
        assert after is not None
        assert seen + after == wanted


@pytest.mark.each(8)
@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_anywhere_gives_what_the_whole_one_gives(tmp_path: Path, name: str) -> None:
    wanted = whole(tmp_path / "whole", name)
    assert (wanted is None) == (name in REFUSED)
    heads = list(cuts(name))
    edges = [head for head in heads if head[-1:] in {b"}", b"]", b"\n", b"\t", b"{"}]
    for number, head in enumerate(edges[:: max(len(edges) // 8, 1)]):
        check_cut(tmp_path / str(number), name, head, wanted)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_at_every_byte_gives_what_the_whole_one_gives(tmp_path: Path, name: str) -> None:
    wanted = whole(tmp_path / "whole", name)
    for number, head in enumerate(cuts(name)):
        check_cut(tmp_path / str(number), name, head, wanted)
    for step in (1, 7):
        check_cut(tmp_path / f"in steps of {step}", name, b"", wanted, step=step)


def test_a_key_alone_waits_and_is_refused_once_nothing_follows(reader: Reader) -> None:
    reader.write("f", pretty(KEY))
    told: list[str] = []
    assert reader.run(on_skipped=lambda reason, _: told.append(reason)) == []
    assert told == ["unfinished line"]
    with pytest.raises(SourceError, match=r"may be a row, or the key .* set it \(options: \{layout: \.\.\.\}\)"):
        reader.run(report_incomplete=True)
    assert len(reader.run(layout="documents")) == 1
