"""Blocks of code in a page of the documentation, with what their fences say.

Fences have the form that the site's renderer reads: ```` ```bash ````, ```` ```yaml title="nevermore.yaml" ````,
```` ```bash {.no-run} ````. It takes any other form for text, and what follows for code.
"""

import re
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^ *```(?P<language>\w+)(?P<options>[^\n]*)\n(?P<code>.*?)^ *```$", re.MULTILINE | re.DOTALL)
OPTIONS = re.compile(r'(?: (?P<open>\{)(?P<marks>(?:\.[\w-]+ ?)+))?(?: ?title="(?P<title>[^"]+)")?(?(open)\})')


@dataclass(frozen=True)
class Block:
    """A block.

    Attributes:
        language: of its code.
        title: the file that it is; empty for none.
        marks: `no-run` for what is only shown, `run-with-...` for what needs a server.
        code: its text.
    """

    language: str
    title: str
    marks: frozenset[str]
    code: str


def page_blocks(page: Path | str) -> list[Block]:
    """The blocks of a page, in order; a fence of another form is an error."""
    found = []
    for block in BLOCK.finditer(page if isinstance(page, str) else page.read_text(encoding="utf-8")):
        options = OPTIONS.fullmatch(block["options"].rstrip())
        assert options is not None, f"```{block['language']}{block['options']}"
        marks = frozenset(mark.lstrip(".") for mark in (options["marks"] or "").split())
        found.append(Block(block["language"], options["title"] or "", marks, block["code"]))
    return found
