"""Messages that point at a place in the filter's text."""

from scan_core.expr.nodes import Span

_SHOWN_BEFORE, _SHOWN = 60, 120


def point_at(sql: str | None, span: Span | None, message: str) -> str:
    """The message, and below it the line of `sql` in question with carets under `span`."""
    if sql is None or span is None:
        return f"{message}\n  {sql[:_SHOWN]}" if sql else message
    start, end = span
    line_start = sql.rfind("\n", 0, start) + 1
    line_end = sql.find("\n", start)
    line = sql[line_start : line_end if line_end >= 0 else len(sql)]
    left = max(0, start - line_start - _SHOWN_BEFORE)
    shown = line[left : left + _SHOWN]
    width = max(1, min(end, line_start + left + len(shown) - 1) - start + 1)
    return f"{message}\n  {shown}\n  {' ' * (start - line_start - left)}{'^' * width}"
