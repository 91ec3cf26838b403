"""Output for people: progress on a terminal, and counts in words."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol


class ShowProgress(Protocol):
    """Replaces the text beside the spinner."""

    def __call__(self, text: str) -> None:
        """Show `text` from now on."""
        ...


@contextmanager
def progress(text: str, *, hidden: bool = False) -> Iterator[ShowProgress]:
    """A spinner with a text and the seconds that passed, on standard error, if that is a terminal; else nothing.

    The line is removed at the end, so that whatever is printed next begins on a line of its own.
    """
    if hidden or not sys.stderr.isatty():
        yield _show_nothing
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(text, total=None)
        yield lambda text: shown.update(task, description=text)


@contextmanager
def byte_progress(text: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on standard error, if that is a terminal, given bytes that are done, bytes in all, and the file at hand."""
    if not sys.stderr.isatty():
        yield lambda _done, _total, _file: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(text, total=None)

        def show(done: int, total: int, file: str) -> None:
            shown.update(task, completed=done, total=total, description=f"{text}: {file.rpartition('/')[2]:.60}")

        yield show


def _show_nothing(text: str) -> None:
    """Progress where nobody watches."""


def counted(number: int, noun: str) -> str:
    """`1 event`, `2,000 events`, `3 deletes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_grid(headings: Sequence[str], rows: Sequence[Sequence[object]], numbers: int = 0) -> None:
    """A table on standard output: numbers to the right, with thousands separated except in the first `numbers` columns."""
    from rich.console import Console
    from rich.table import Table

    is_number = [bool(rows) and all(isinstance(row[i], int) for row in rows) for i in range(len(headings))]
    grid = Table(show_edge=False, pad_edge=False)
    for heading, is_right in zip(headings, is_number, strict=True):
        grid.add_column(heading, justify="right" if is_right else "left", overflow="fold")
    for row in rows:
        cells = enumerate(row)
        grid.add_row(*(f"{cell:,}" if isinstance(cell, int) and i >= numbers else str(cell) for i, cell in cells))
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 200)
    console.print(grid)


def print_json(document: Any) -> None:
    """A document as JSON on one line of standard output."""
    import orjson
    import typer

    typer.echo(orjson.dumps(document))
