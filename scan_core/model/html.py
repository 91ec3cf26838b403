"""Markup for people: tables, bars, lines and pages, as the templates of `markup.html` draw them.

Every text is escaped, and without secrets; arguments after a title are markup. Other templates are drawn with these at hand.
"""

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import markupsafe

from nevermore.scan_core.model.errors import hide_secrets

Html = markupsafe.Markup
OWN = Path(__file__).with_name("markup.html")


def _shown(value: object) -> str:
    """A value as it is put into markup: numbers with thousands separators, text without secrets."""
    match value:
        case Html():
            return value
        case None:
            return ""
        case int() if not isinstance(value, bool):
            return f"{value:,}"
        case _:
            return hide_secrets(str(value))


@cache
def _template(path: Path) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader([path.parent, OWN.parent])
    environment = Environment(loader=loader, autoescape=True, finalize=_shown, undefined=StrictUndefined)
    return environment.get_template(path.name)


def render(path: Path, **values: object) -> Html:
    """Draw a template, which may import `markup.html`."""
    return Html(_template(path).render(values))


def _draw(macro: str, *parts: object, **options: object) -> Html:
    return Html(getattr(_template(OWN).module, macro)(*parts, **options))


def escaped(value: object) -> Html:
    """A value as markup."""
    return Html.escape(_shown(value))


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


grid, facts, bars = partial(_draw, "grid"), partial(_draw, "facts"), partial(_draw, "bars")
section, details = partial(_draw, "section"), partial(_draw, "details")
fragment, page = partial(_draw, "fragment"), partial(_draw, "page")
