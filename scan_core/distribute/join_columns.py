"""Which columns of the two sides a join compares, as they are given."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from scan_core.errors import OptionError

On = str | Sequence[str] | Mapping[str, str]

_NAMES = "a join is on names of columns, not on conditions: on='id', on=['id', 'day'] or on={'customer_id': 'id'}"


def pairs_of(on: On) -> tuple[dict[str, str], bool]:
    """Columns of the fact with those of the dimension, and whether one name was given for both.

    Raises:
        OptionError: no columns, or conditions in their place.
    """
    if isinstance(on, str):
        return {on: on}, True
    if not isinstance(on, Collection):
        raise OptionError(_NAMES)
    if not on:
        raise OptionError("a join needs at least one column")
    pairs = dict(on) if isinstance(on, Mapping) else {name: name for name in on}
    if not all(isinstance(name, str) for pair in pairs.items() for name in pair):
        raise OptionError(_NAMES)
    return pairs, not isinstance(on, Mapping)


def require_columns(names: Sequence[str], wanted: Iterable[str], side: str) -> None:
    """Check that a side has the columns that it is joined by.

    Raises:
        OptionError: it lacks one.
    """
    missing = [name for name in wanted if name not in names]
    if missing:
        raise OptionError(f"the {side} has no column {missing[0]!r}; it has {', '.join(names)}")
