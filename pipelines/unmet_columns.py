"""Columns that a table's config names and that neither the events of a run nor the mirror have: mostly misspelt.

They are no error, for a column may come later; so they are told with the nearest name that there is.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from pipelines.config import TableConfig

_OPTIONS = ("types", "encodings", "cast", "include", "exclude", "rename")


@dataclass(frozen=True, slots=True)
class UnmetColumn:
    """What was named where, and what may have been meant.

    Attributes:
        option: of the table's config.
        column: as it stands there.
        nearest: column of the events or the mirror, None if none is like it.
    """

    option: str
    column: str
    nearest: str | None

    def __str__(self) -> str:
        hint = "" if self.nearest is None else f"; did you mean {self.nearest}?"
        return f"{self.option} names {self.column}, which no event of this run and no column of the table has{hint}"


def unmet_columns(config: TableConfig, sent: Collection[str], columns: Collection[str]) -> Iterator[UnmetColumn]:
    """What config names and nothing has.

    Args:
        config: of the table.
        sent: columns of the events, by their names in the feed.
        columns: of the mirror.
    """
    # a column that an earlier run renamed is in the mirror by its new name
    before = {source for source, target in config.rename.items() if target in columns and target not in sent}
    known = {*sent, *(config.rename.get(column, column) for column in sent), *columns, *before}
    for option in _OPTIONS:
        for column in getattr(config, option):
            if column not in known and not _is_inside(column, known):
                near = get_close_matches(column, sorted(known), n=1)
                yield UnmetColumn(option, column, near[0] if near else None)


def _is_inside(path: str, columns: Collection[str]) -> bool:
    """Whether a path such as `address.zip` begins with a column."""
    steps = path.split(".")
    return any(".".join(steps[:count]) in columns for count in range(1, len(steps)))
