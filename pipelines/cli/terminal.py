"""What commands print: progress on a terminal, counts in words, tables, and JSON."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nevermore.pipelines.wording import counted
from nevermore.scan_core.io import hide_secrets, write_whole

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from nevermore.pipelines.publish.refresh_report import PublishReport

ShowProgress = Callable[[str], None]
"""Replaces the text next to the spinner."""


@contextmanager
def progress(text: str, *, hidden: bool = False) -> Iterator[ShowProgress]:
    """A spinner with a text and the elapsed seconds on standard error, if that is a terminal; removed at the end."""
    if hidden or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(text, total=None)
        yield lambda text: shown.update(task, description=text)


@contextmanager
def byte_progress(text: str) -> Iterator[Callable[[int, int, str], None]]:
    """A spinner with what is done; takes bytes done, bytes in total, and the current file."""
    with progress(text) as show:
        yield lambda done, total, file: show(
            f"{text}: {done / max(total, 1):.0%} of {total:,} bytes, {file.rpartition('/')[2]:.60}"
        )


def print_grid(headings: Sequence[str], rows: Sequence[Sequence[object]], num_ids: int = 0) -> None:
    """Print a table: numbers aligned right, with thousands separators except in the first `num_ids` columns."""
    is_number = [bool(rows) and all(isinstance(row[i], int) for row in rows) for i in range(len(headings))]
    shown = (
        [f"{cell:,}" if isinstance(cell, int) and i >= num_ids else str(cell) for i, cell in enumerate(row)]
        for row in rows
    )
    draw_grid(zip(headings, is_number, strict=True), shown)


def draw_grid(
    columns: Iterable[tuple[str, bool]], rows: Iterable[Iterable["str | Text"]], file: IO[str] | None = None
) -> "Console":
    """Print a table to a file, or to standard output; columns have a heading, and may be aligned right."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(show_edge=False, pad_edge=False)
    for heading, is_right in columns:
        grid.add_column(heading, justify="right" if is_right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    console = Console(file=file, markup=False, highlight=False, width=None if sys.stdout.isatty() else 200)
    console.print(grid)
    return console


def print_json(document: Any) -> None:
    """Print a document or dataclass as JSON on one line, without secrets."""
    import orjson
    import typer

    # Secrets are removed from the values, not from the text: JSON escapes quotes within a secret.
    typer.echo(orjson.dumps(_without_secrets(orjson.loads(orjson.dumps(document)))))


def _without_secrets(value: Any) -> Any:
    match value:
        case str():
            return hide_secrets(value)
        case list():
            return [_without_secrets(item) for item in value]
        case dict():
            return {hide_secrets(name): _without_secrets(item) for name, item in value.items()}
        case _:
            return value


def print_result(document: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print the result of a command: a document or dataclass as JSON, or these lines."""
    import typer

    if as_json:
        print_json(document)
        return
    for line in lines:
        typer.echo(line)


def write_page(path: Path, text: str, *, as_json: bool) -> None:
    """Write a page of HTML, whole or not at all, and say where it is.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(f"{path} is not a regular file: specify the HTML file to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    print_result({"path": str(path)}, [f"Wrote {path}"], as_json=as_json)


_MAX_SHOWN = 20
"""Maximum number of partitions listed with their reasons; --json lists all."""


def describe_publication(report: "PublishReport", *, with_reasons: bool) -> str:
    """What a run built, or would build; `with_reasons` adds why each partition is rebuilt and how mirrors are read."""
    if report.is_unchanged:
        return f"{report.name}: up to date, {report.reason}"
    if report.partitions is None:
        what = "all partitions"
    else:
        what = (
            f"partition {report.partitions[0]}"
            if len(report.partitions) == 1
            else f"{len(report.partitions)} partitions"
        )
    if report.changed_keys is not None:
        what = counted(report.changed_keys, "key")
    if report.is_dry:
        lines = [f"{report.name}: would build {what} ({report.reason})"]
    else:
        verb = {"replace": "built", "append": "appended", "upsert": "upserted"}[report.mode]
        deleted = f", {counted(report.delete_rows, 'key')} deleted first" if report.delete_rows else ""
        lines = [
            f"{report.name}: {verb} {what} ({report.reason}): {counted(report.rows, 'row')} in "
            f"{counted(report.data_files, 'file')}{deleted}, snapshot {report.snapshot_id}"
            + ("; unchecked" if report.is_unchecked else "")
        ]
    if empty := report.empty_partitions:
        more = f" and {len(empty) - _MAX_SHOWN} more" if len(empty) > _MAX_SHOWN else ""
        shown = ", ".join(empty[:_MAX_SHOWN]) + more
        lines.append(f"  warning: the SQL returns no rows for {shown}: published empty, without any earlier rows")
    if report.indexes is not None:
        lines += [f"  {line}" for line in report.indexes.lines]
        lines += [f"  warning: indexes: {warning}" for warning in report.indexes.warnings]
    if with_reasons:
        lines += [f"  {table}: {counted(n, 'row')} added or removed" for table, n in report.changed_rows.items()]
        reasons = [f"  {key}: {', '.join(why)}" for key, why in report.why.items() if why]
        lines += reasons[:_MAX_SHOWN]
        lines += [f"  and {len(reasons) - _MAX_SHOWN} more"] if len(reasons) > _MAX_SHOWN else []
        for table, read in report.reads.items():
            lines += read.described(table)
    return "\n".join(lines)
