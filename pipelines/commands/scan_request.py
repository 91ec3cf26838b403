"""What `scan` and `explain` have in common: from command-line options to a `scan_core.Scan`."""

import csv
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pipelines.errors import ConfigError

if TYPE_CHECKING:
    from scan_core import Scan, Table


def build_scan(
    table: "Table",
    *,
    columns: str | None,
    where: str | None,
    snapshot: int | None,
    as_of: str | None,
    ref: str | None,
    limit: int | None = None,
    sample: float | None = None,
    seed: int = 0,
) -> "Scan":
    """The scan that these options ask for.

    Raises:
        ConfigError: more than one of snapshot, as_of and ref; a time or limit that is none.
        ScanError: unknown column, snapshot or reference, wrong predicate.
    """
    chosen = [
        name for name, value in (("--snapshot", snapshot), ("--as-of", as_of), ("--ref", ref)) if value is not None
    ]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} exclude each other; give one")
    if limit is not None and limit < 0:
        raise ConfigError(f"--limit must not be negative, not {limit}")
    scan = table.scan()
    if snapshot is not None:
        scan = scan.as_of_snapshot(snapshot)
    if as_of is not None:
        scan = scan.as_of_time(parse_time(as_of))
    if ref is not None:
        scan = scan.at_ref(ref)
    if columns is not None:
        if not split_names(columns):
            raise ConfigError("--columns names no column")
        scan = scan.select(*split_names(columns))
    if where is not None:
        scan = scan.where(where)
    if sample is not None:
        scan = scan.sample(sample, seed)
    return scan if limit is None else scan.limit(limit)


def split_names(text: str) -> list[str]:
    """Comma-separated names; one that holds a comma is written in double quotes."""
    try:
        return [name for name in next(csv.reader([text], skipinitialspace=True), []) if name]
    except csv.Error as error:
        raise ConfigError(
            f"{text!r} is no list of names: {error}; write a name with odd characters in double quotes"
        ) from error


def parse_time(text: str) -> datetime:
    """A moment from ISO text (UTC unless it has an offset) or epoch milliseconds.

    Raises:
        ConfigError: neither of them.
    """
    try:
        if text.lstrip("-").isdigit():
            return datetime.fromtimestamp(int(text) / 1000, tz=UTC)
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(
            f"--as-of {text!r} is no time: write 2026-01-31, 2026-01-31T12:00:00+01:00 or epoch milliseconds"
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
