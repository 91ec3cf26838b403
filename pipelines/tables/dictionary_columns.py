"""Which columns of a file get a Parquet dictionary: those whose values come again often enough, by a sample of them.

A dictionary that most values are new to costs a hash table and a second encoding, and makes the file larger.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

SAMPLE_RUNS = 16
SAMPLE_RUN_ROWS = 64
"""Runs and not single rows, as slices cost no copy. Rows that repeat their neighbour keep their dictionary."""
LEAST_ROWS = 4 * SAMPLE_RUNS * SAMPLE_RUN_ROWS
"""Smaller files are not worth the sample."""
LEAST_VALUES = 32
"""Fewer tell nothing."""
LEAST_REPEATS = 4
"""Each value must occur so often on average: its place in the dictionary takes up to half of its own bytes."""
MOST_DICTIONARY_BYTES = 1024**2
"""Where Parquet's writer gives a dictionary up by itself."""

_GOLDEN = 0.6180339887


def dictionary_columns(rows: pa.Table) -> list[str] | bool:
    """Paths of the columns that get a dictionary; True for all."""
    if rows.num_rows < LEAST_ROWS:
        return True
    step = rows.num_rows // SAMPLE_RUNS
    # At uneven distances: what comes again in one rhythm would otherwise be met always or never.
    starts = (int((number + number * _GOLDEN % 1) * step) for number in range(SAMPLE_RUNS))
    sample = pa.concat_tables([rows.slice(start, SAMPLE_RUN_ROWS) for start in starts]).combine_chunks()
    share = rows.num_rows / sample.num_rows
    return [
        path
        for field, column in zip(sample.schema, sample.columns, strict=True)
        for path, leaf in _leaves(field.name, column.combine_chunks())
        if _repeats(leaf, share)
    ]


def _leaves(path: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """The columns of Parquet that a column of Arrow becomes, by their paths."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_struct(kind):
        for member, values in zip(kind, array.flatten(), strict=True):
            yield from _leaves(f"{path}.{member.name}", values)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", array.keys)
        yield from _leaves(f"{path}.key_value.value", array.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(f"{path}.list.element", array.flatten())
    else:
        yield path, array


def _repeats(sample: pa.Array, share: float) -> bool:
    """Whether the values of a column, of which this is one in `share`, occur often enough each.

    Two of n values drawn from d are equal with a chance of 1 in d, so that m of them have m * m / 2d equal pairs.
    """
    values = sample.drop_null()
    given = len(values)
    if given < LEAST_VALUES or pa.types.is_boolean(values.type):
        return True
    repeated = given - len(pc.unique(values))
    if repeated == 0:
        return False
    distinct = given * given / (2 * repeated)
    return bool(distinct * LEAST_REPEATS <= given * share and distinct * values.nbytes <= MOST_DICTIONARY_BYTES * given)
