"""Markup for people: tables, bars, lines and pages, as HTML that needs no script, font or file from elsewhere.

Every text is escaped, and without secrets. Colors follow the reader's dark or light theme.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from nevermore.scan_core.model.errors import hide_secrets


class Html(str):
    """Markup; any other value is text, which is escaped where it is put into markup."""

    __slots__ = ()


def escaped(value: object) -> Html:
    """A value as markup: numbers with thousands separators, text escaped and without secrets."""
    if isinstance(value, Html):
        return value
    if value is None:
        return Html("")
    if isinstance(value, int) and not isinstance(value, bool):
        return Html(f"{value:,}")
    return Html(html.escape(hide_secrets(str(value))))


def grid(headings: Sequence[str], rows: Sequence[Sequence[object]], *, max_rows: int = 100) -> Html:
    """A table; numbers are aligned right. Rows beyond `max_rows` are counted, not shown."""
    head = "".join(f"<th>{escaped(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:max_rows])
    more = f"<p class=muted>and {len(rows) - max_rows:,} more</p>" if len(rows) > max_rows else ""
    return Html(f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}")


def _cell(value: object) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td{' class=num' if is_number else ''}>{escaped(value)}</td>"


def facts(items: Sequence[tuple[str, object]]) -> Html:
    """Names with their values, as tiles side by side."""
    tiles = "".join(
        f"<div class=fact><b>{escaped(value)}</b><span>{escaped(name)}</span></div>" for name, value in items
    )
    return Html(f"<div class=facts>{tiles}</div>")


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        label: what is counted.
        value: its length, not negative.
        text: the value in words.
        kind: its color: read, skipped, bad or plain.
    """

    label: str
    value: float
    text: str
    kind: str = "plain"


def bars(items: Sequence[Bar]) -> Html:
    """Horizontal bars, each as long as its share of the longest."""
    top = max((item.value for item in items), default=0.0) or 1.0
    rows = (
        f"<div class=bar><span>{escaped(item.label)}</span><i><i class='{escaped(item.kind)}' "
        f"style='width:{100 * item.value / top:.2f}%'></i></i><span>{escaped(item.text)}</span></div>"
        for item in items
    )
    return Html(f"<div class=bars>{''.join(rows)}</div>")


_WIDTH, _HEIGHT, _PAD = 600, 140, 6


def line_chart(points: Sequence[tuple[float, float]], *, start: str, end: str, top: str) -> Html:
    """A line through points (x, y >= 0), ordered by x.

    Args:
        points: two or more of them.
        start: label of the first x.
        end: label of the last x.
        top: label of the greatest y.
    """
    if len(points) < 2:
        return Html("<p class=muted>not enough snapshots for a chart yet</p>")
    first, last = points[0][0], points[-1][0]
    highest = max(y for _, y in points) or 1.0
    span = (last - first) or 1.0
    drawn = [((x - first) / span * _WIDTH, _HEIGHT - _PAD - y / highest * (_HEIGHT - 2 * _PAD)) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
    dots = "".join(f"<circle cx='{x:.1f}' cy='{y:.1f}' r=2.5 />" for x, y in drawn) if len(drawn) <= 60 else ""
    return Html(
        f"<figure><figcaption>{escaped(top)}</figcaption><svg viewBox='-4 0 {_WIDTH + 8} {_HEIGHT}' role=img "
        f"preserveAspectRatio=none><polyline points='{path}' vector-effect=non-scaling-stroke />{dots}</svg>"
        f"<div class=axis><span>{escaped(start)}</span><span>{escaped(end)}</span></div></figure>"
    )


def chain(stages: Sequence[Sequence[object]]) -> Html:
    """Boxes in stages, each stage made from the one before it."""
    columns = (
        "<div class=stage>" + "".join(f"<div class=box>{escaped(box)}</div>" for box in stage) + "</div>"
        for stage in stages
        if stage
    )
    return Html(f"<div class=chain>{'<div class=arrow>&#8594;</div>'.join(columns)}</div>")


def section(title: str, *parts: str) -> Html:
    """Parts, which are markup, under a heading."""
    return Html(f"<section><h2>{escaped(title)}</h2>{''.join(parts)}</section>")


def details(title: str, text: str) -> Html:
    """Plain text that is shown when asked for."""
    return Html(f"<details><summary>{escaped(title)}</summary><pre>{escaped(text)}</pre></details>")


_STYLE = """
.nm{--line:#8886;--soft:#8882;--mute:#808890;--read:#2f7fd6;--skipped:#2fa36b;--bad:#d64545;--plain:#7d6bd6;
font:14px/1.45 system-ui,sans-serif;max-width:70rem}
.nm h1{font-size:1.5rem;margin:.2em 0;overflow-wrap:anywhere}.nm h2{font-size:1.1rem;margin:1.6em 0 .5em}.nm h3{font-size:1rem;margin:1em 0 .3em}
.nm .muted,.nm figcaption,.nm .axis,.nm .fact span{color:var(--mute);font-size:.85em}
.nm .wide{overflow-x:auto}.nm table{border-collapse:collapse;white-space:normal;font-size:.9em;color:inherit;background:none}
.nm th{text-align:left;color:var(--mute);font-weight:600}.nm th,.nm td{padding:.25em .9em .25em 0;border-bottom:1px solid var(--line);
vertical-align:top;background:none;overflow-wrap:break-word;max-width:32em}
.nm td.num{text-align:right;font-variant-numeric:tabular-nums;overflow-wrap:normal}
.nm .facts{margin:.6em 0;display:flex;flex-wrap:wrap;gap:.5em}.nm .fact{background:var(--soft);border-radius:6px;padding:.5em .9em}
.nm .fact b{display:block;font-size:1.15em;font-variant-numeric:tabular-nums}
.nm .bar{display:grid;grid-template-columns:minmax(7em,16em) 1fr minmax(6em,13em);gap:.7em;align-items:center;margin:.25em 0}
.nm .bar>i{background:var(--soft);height:.9em;border-radius:3px;overflow:hidden}.nm .bar>i>i{display:block;height:100%;min-width:1px}
.nm .plain{background:var(--plain)}.nm .read{background:var(--read)}.nm .skipped{background:var(--skipped)}.nm .bad{background:var(--bad)}
.nm figure{margin:.5em 0}.nm svg{width:100%;height:9em;display:block;border-bottom:1px solid var(--line)}
.nm polyline{fill:none;stroke:var(--read);stroke-width:2}.nm circle{fill:var(--read)}.nm .axis{display:flex;justify-content:space-between}
.nm .chain{display:flex;flex-wrap:wrap;align-items:center;gap:.5em}.nm .stage{display:flex;flex-direction:column;gap:.4em;min-width:0}
.nm .box{border:1px solid var(--line);border-radius:6px;padding:.35em .7em;overflow-wrap:anywhere}.nm .box b{color:var(--read)}
.nm pre{overflow-x:auto;background:var(--soft);padding:.7em;border-radius:6px;font-size:.85em;color:inherit}
.nm summary{cursor:pointer}.nm .pass{color:var(--skipped)}.nm .fail{color:var(--bad);font-weight:700}.nm nav a{margin-right:1em;color:var(--read)}
@media(max-width:40rem){.nm .bar{grid-template-columns:1fr auto}.nm .bar>i{grid-column:1/-1;grid-row:2}.nm .chain{flex-direction:column;align-items:stretch}
.nm .arrow{transform:rotate(90deg);text-align:center}}
"""
_PAGE_STYLE = """
body{margin:0;padding:1rem;background:#fff;color:#1b1f24}.nm{margin:0 auto}
@media(prefers-color-scheme:dark){body{background:#14181d;color:#dfe4ea}.nm{--read:#5aa2f0;--skipped:#4cc38a;--bad:#ff6b6b;--plain:#a294f0;--mute:#98a2ad}}
"""


def fragment(*parts: str) -> Html:
    """Markup for a notebook."""
    return Html(f"<div class=nm><style>{_STYLE}</style>{''.join(parts)}</div>")


def page(title: str, *parts: str) -> Html:
    """A whole document, readable on a phone, that loads nothing."""
    return Html(
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'><meta name=color-scheme content='light dark'>"
        f"<title>{escaped(title)}</title><style>{_STYLE}{_PAGE_STYLE}</style></head>"
        f"<body><div class=nm><h1>{escaped(title)}</h1>{''.join(parts)}</div></body></html>\n"
    )
