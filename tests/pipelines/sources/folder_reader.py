"""A process that reads a folder of event files again and again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nevermore.pipelines.formats.registry import complete_events_of
from nevermore.pipelines.sources.file_options import FileOptions
from nevermore.pipelines.sources.file_position import FilePosition
from nevermore.pipelines.sources.files import discover

Seen = list[tuple[str, int, Any]]


PAIRS = complete_events_of("rows", {})


class Reader:
    """A process that reads a folder again and again, with nothing but the position between runs."""

    def __init__(self, folder: Path, pattern: str = "*") -> None:
        self.folder = folder
        self.pattern = pattern
        self.position: str | None = None
        self.clock = 1_700_000_000

    def write(self, name: str, text: str | bytes, mode: str = "w") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode() if isinstance(text, str) else text
        with path.open(mode + "b") as file:
            file.write(data)

    def run(self, stop_after: int | None = None, **options: Any) -> Seen:
        """What is new; with `stop_after`, the process dies after so many batches."""
        extra = {k: options.pop(k) for k in ("applied_lines", "complete", "on_skipped") if k in options}
        position = None if self.position is None else FilePosition.from_json(self.position)
        seen: Seen = []
        batches = discover([str(self.folder / self.pattern)], position, FileOptions(**options), **extra)
        for number, batch in enumerate(batches):
            if number == stop_after:
                break
            seen += events_of(batch.raw)
            self.position = batch.position_after.to_json()
            assert FilePosition.from_json(self.position) == batch.position_after
        return seen


def events_of(raw: Any) -> Iterator[tuple[str, int, Any]]:
    names, offsets = raw.source_file.to_pylist(), raw.source_offset.to_pylist()
    if raw.rows is not None:
        return zip(names, offsets, raw.rows.to_pylist(), strict=True)
    values = [None if d is None else d.decode().strip() for d in raw.documents.to_pylist()]
    if raw.keys is not None:
        values = list(zip([k.decode().strip() for k in raw.keys.to_pylist()], values, strict=True))
    return zip(names, offsets, values, strict=True)


def lines(*numbers: int) -> str:
    return "".join(f'{{"n":{n}}}\n' for n in numbers)


def numbers(seen: Seen) -> list[int]:
    return [json.loads(document)["n"] for _, _, document in seen]
