"""One case: a file of a table is damaged, the table is read, and what came of it is judged.

A case is told by its number and a seed alone, so that it can be made again.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from nevermore import scan_core
from nevermore.scan_core import MissingFileError, Scan, ScanError, ScanOptions, TableNotFoundError
from tests.fuzz.file_mutations import mutate_file
from tests.fuzz.subjects import Subject
from tests.fuzz.value_mutations import MADE_UP_TEXTS

_FIRST_TIME_NS = 1_600_000_000_000_000_000
_FILE_NAME = re.compile(r"\.(parquet|parq|orc|avro|puffin|json)\b", re.IGNORECASE)
_METADATA_COLUMNS = ("_file", "_pos", "_partition", "_spec_id", "_row_id", "_last_updated_sequence_number")


@dataclass(frozen=True, slots=True)
class Case:
    """What is done to which table."""

    seed: int
    number: int
    subject: Subject
    path: str
    content: bytes

    def __str__(self) -> str:
        return f"case {self.number} of seed {self.seed}: {self.subject.name}, {self.path} damaged"


def make_case(seed: int, number: int, subjects: Sequence[Subject]) -> tuple[Case, Random]:
    """The case with this number, and the randomness that is left for reading it."""
    random = Random(f"{seed}/{number}")
    deep = [s for s in subjects if s.is_built]
    subject = subjects[number // 2 % len(subjects)] if number % 2 else deep[number // 2 % len(deep)]
    files = subject.files()
    kinds = sorted({_kind(path) for path in files})
    kind = random.choice(kinds)
    path = random.choice([p for p in files if _kind(p) == kind])
    data = (subject.folder / path).read_bytes()
    others = [(subject.folder / random.choice(files)).read_bytes()]
    return Case(seed, number, subject, path, mutate_file(path, data, others, random)), random


def run_case(case: Case, random: Random) -> str | None:
    """None if the table was read or refused as it should be, else what went wrong."""
    target = case.subject.folder / case.path
    original, times = target.read_bytes(), target.stat()
    try:
        target.write_bytes(case.content)
        at = _FIRST_TIME_NS + case.number  # caches know files by time and size
        os.utime(target, ns=(at, at))
        return _judge(case, random)
    finally:
        target.write_bytes(original)
        os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))


def _judge(case: Case, random: Random) -> str | None:
    subject = case.subject
    try:
        table = scan_core.open_table(
            subject.folder / subject.metadata, relocate={subject.relocate: str(subject.folder)}
        )
        options = random.choice((ScanOptions(parallelism=1), ScanOptions.without_optimisations()))
        random.choice(_QUERIES)(table.scan().with_options(options))
    except ScanError as error:
        return _judge_refusal(case, error)
    except Exception as error:  # noqa: BLE001  the point is to find them
        return f"{type(error).__name__}: {error}"
    return None


def _judge_refusal(case: Case, error: ScanError) -> str | None:
    """A refusal names a file, and is no memory that could not be had."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError):
            return f"asked for more memory than there is: {error}"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, MissingFileError | TableNotFoundError):
        return None
    if any(name in str(error) for name in (case.subject.name, case.subject.relocate)) or _FILE_NAME.search(str(error)):
        return None
    if any(text and repr(text)[1:-1] in str(error) for text in MADE_UP_TEXTS):
        return None  # the name of the file is what was damaged
    return f"{type(error).__name__} names no file: {error}"


def _all_rows(scan: Scan) -> None:
    rows = scan.to_table()
    rows.validate()
    if rows.schema != scan.arrow_schema:
        raise AssertionError(f"rows of schema {rows.schema} instead of {scan.arrow_schema}")
    if rows.num_rows != scan.count():
        raise AssertionError(f"{rows.num_rows} rows, but a count of {scan.count()}")


def _some_rows(scan: Scan) -> None:
    names = scan.schema.names or ("_pos",)
    column = "`" + names[0].replace("`", "``") + "`"
    scan.select(*names[::2]).where(f"{column} is not null").to_table().validate()


def _few_rows(scan: Scan) -> None:
    scan.where("_pos % 997 = 5").to_table().validate()


def _dead_rows(scan: Scan) -> None:
    scan.select(*_METADATA_COLUMNS, "_deleted", "_delete_file").to_table().validate()


def _changed_rows(scan: Scan) -> None:
    snapshots = sorted(scan.table.metadata.snapshots.values(), key=lambda s: s.sequence_number)
    first = snapshots[0].snapshot_id if snapshots else None
    scan.changes(first).to_table().validate()


def _older_rows(scan: Scan) -> None:
    for snapshot in list(scan.table.metadata.snapshots)[:2]:
        scan.as_of_snapshot(snapshot).to_table().validate()


_QUERIES: tuple[Callable[[Scan], Any], ...] = (
    _all_rows,
    _all_rows,
    _all_rows,
    _all_rows,
    _some_rows,
    _few_rows,
    _few_rows,
    _dead_rows,
    _changed_rows,
    _older_rows,
)


def _kind(path: str) -> str:
    """Files of a kind are damaged as often as those of any other, however many there are."""
    name = Path(path).name
    if not path.startswith("data"):
        return "list" if name.startswith("snap-") else Path(path).suffix
    return Path(path).suffix + ("-delete" if "delete" in name else "")
