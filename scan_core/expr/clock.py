"""What `current_date` and its kin stand for: one moment per filter, taken when it is bound, in UTC."""

import datetime as dt

from scan_core.expr.bound import Literal
from scan_core.expr.literals import from_python

_DATES = frozenset({"current_date", "curdate"})
_MOMENTS = frozenset({"current_timestamp", "now"})


def clock_literal(function: str, now: dt.datetime) -> Literal | None:
    """The value of a function of the clock at `now`, which is in UTC; None if it is no such function."""
    if function in _DATES:
        return Literal(*from_python(now.date()))
    if function in _MOMENTS:
        return Literal(*from_python(now))
    return Literal(*from_python(now.replace(tzinfo=None))) if function == "localtimestamp" else None
