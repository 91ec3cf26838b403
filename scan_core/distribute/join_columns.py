"""Which columns of the two sides a join compares, as they are given."""

from collections.abc import Iterable, Mapping, Sequence

from scan_core.errors import OptionError

On = str | Sequence[str] | Mapping[str, str]


def pairs_of(on: On) -> tuple[dict[str, str], bool]:
    """Columns of the fact with those of the dimension, and whether one name was given for both.

    Raises:
        OptionError: no columns.
    """
    if isinstance(on, str):
        return {on: on}, True
    if isinstance(on, Mapping):
        if not on:
            raise OptionError("a join needs at least one column")
        return dict(on), False
    if not on:
        raise OptionError("a join needs at least one column")
    return {name: name for name in on}, True


def require_columns(names: Sequence[str], wanted: Iterable[str], side: str) -> None:
    """Check that a side has the columns that it is joined by.

    Raises:
        OptionError: it lacks one.
    """
    missing = [name for name in wanted if name not in names]
    if missing:
        raise OptionError(f"the {side} has no column {missing[0]!r}; it has {', '.join(names)}")
