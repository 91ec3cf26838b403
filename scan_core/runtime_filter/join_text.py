"""Semi joins and prefilters of a scan as one text, for data sources that carry strings alone.

Keys that are a scan are read here, once, and ranges found: whoever reads the text needs no other table.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scan_core.errors import OptionError
from scan_core.runtime_filter.induced import GivenRanges, KeyRangeSource, key_ranges
from scan_core.runtime_filter.key_payload import from_text, to_text
from scan_core.runtime_filter.late_keys import LateKeys
from scan_core.runtime_filter.semi_join import SemiJoin


def joins_as_text(joins: Sequence[SemiJoin]) -> str:
    """JSON, the keys in it as compressed Arrow."""
    return json.dumps([_document(join) for join in joins])


def joins_from_text(text: str) -> tuple[SemiJoin, ...]:
    """The inverse.

    Raises:
        OptionError: not such text.
    """
    try:
        return tuple(_join(document) for document in json.loads(text))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(f"option 'joins' is not what a scan writes: {error}") from error


def _document(join: SemiJoin) -> dict[str, Any]:
    document: dict[str, Any] = {"columns": list(join.columns), "exact": join.is_exact}
    keys = join.keys
    if isinstance(keys, LateKeys):
        if keys.folder is None:
            raise OptionError("late keys reach other processes through a folder: LateKeys(folder)")
        return document | {"late": keys.name, "folder": str(keys.folder)}
    if isinstance(keys, KeyRangeSource):
        keys = GivenRanges.of(key_ranges(keys.scan, keys.column, keys.most_ranges))
    if isinstance(keys, GivenRanges):
        return document | {"ranges": None if keys.bounds is None else to_text(keys.bounds)}
    rows = join.key_rows()
    assert rows is not None  # noqa: S101  only the kinds above have none
    return document | {"keys": to_text(rows)}


def _join(document: dict[str, Any]) -> SemiJoin:
    columns, is_exact = tuple(document["columns"]), bool(document["exact"])
    if "late" in document:
        return SemiJoin(columns, LateKeys(Path(document["folder"]), document["late"]), is_exact)
    if "ranges" in document:
        text = document["ranges"]
        return SemiJoin(columns, GivenRanges(None if text is None else from_text(text)), is_exact)
    return SemiJoin(columns, from_text(document["keys"]), is_exact)
