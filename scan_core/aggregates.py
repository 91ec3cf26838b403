"""Aggregates of a scan that need no rows: which calls are allowed, and how the splits' results become one answer.

How a row group is aggregated is in `read/aggregate.py`. Grouping and expressions are a query engine's business.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, get_args
from uuid import UUID

import pyarrow as pa

from scan_core.errors import OptionError, UnsupportedError
from scan_core.metrics import ScanMetrics
from scan_core.read.aggregate import Call, Function, Partial, combine
from scan_core.read.read_ahead import FilesAhead
from scan_core.read.split_reader import aggregate_split
from scan_core.schema import PrimitiveType
from scan_core.split import Split

if TYPE_CHECKING:
    from scan_core.scan import Scan

_QUEUED_PARTIALS = 10_000
"""Some bytes each: nobody waits for earlier row groups to be combined."""
_ADDABLE = frozenset({"int", "long", "float", "double", "decimal"})


def run_aggregates(scan: "Scan", wanted: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """The answer to each (function, column), in order; see `Scan.aggregate`."""
    names = tuple(dict.fromkeys(name for _, name in wanted if name != "*"))
    narrow = scan.select(*names)
    calls = [_call(narrow, function, name, names) for function, name in wanted]
    answers: list[Partial] = [0 if call.function == "count" else None for call in calls]
    for found in scan.run(narrow.plan(), partial(_aggregate_one, calls=calls), queued=_QUEUED_PARTIALS):
        answers = [combine(call.function, a, b) for call, a, b in zip(calls, answers, found, strict=True)]
    kinds = narrow.arrow_schema.types
    return tuple(_public(a, call, kinds) for a, call in zip(answers, calls, strict=True))


def _call(scan: "Scan", function: str, name: str, names: Sequence[str]) -> Call:
    known: dict[str, Function] = {f: f for f in get_args(Function)}
    if function not in known:
        raise OptionError(f"unknown aggregate {function!r}; there are {', '.join(known)}")
    if name == "*":
        if function != "count":
            raise OptionError(f"{function}(*): only count takes *; name a column")
        return Call("count", None)
    column = scan.schema.fields[names.index(name)]
    if function == "sum" and not (isinstance(column.type, PrimitiveType) and column.type.name in _ADDABLE):
        raise UnsupportedError(f"sum({name}): values of type {column.type} cannot be added")
    if function != "count" and not isinstance(column.type, PrimitiveType):
        raise UnsupportedError(f"{function}({name}): values of type {column.type} have no order")
    return Call(known[function], names.index(name))


def _public(answer: Partial, call: Call, kinds: Sequence[pa.DataType]) -> Any:
    """As Python sees it; a UUID is stored as 16 bytes."""
    if not isinstance(answer, pa.Scalar):
        return answer
    found = answer.as_py()
    return UUID(bytes=found) if call.column is not None and kinds[call.column] == pa.uuid() else found


def _aggregate_one(
    split: Split, metrics: ScanMetrics, ahead: FilesAhead, calls: Sequence[Call]
) -> Iterator[tuple[Partial, ...]]:
    yield from aggregate_split(split, calls, metrics, ahead)
