"""Options of the commands that write rows: in which format, where to, how many."""

from enum import StrEnum

import typer


class OutputFormat(StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


LIMIT = typer.Option("--limit", help="At most this many rows.", show_default=False)
FORMAT = typer.Option("--format", help="How to write rows; by the output's suffix, else table.", show_default=False)
OUTPUT = typer.Option("--output", "-o", help="Write here; `-` is standard output, the default.", show_default=False)
METRICS = typer.Option("--metrics", help="Print what was read and skipped, on standard error.")
