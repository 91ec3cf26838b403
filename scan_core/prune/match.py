"""What can be told of rows without looking at them, and at which level."""

from enum import Enum


class Match(Enum):
    """NEVER: no row matches. ALWAYS: every row does. MAYBE: look at the rows."""

    NEVER = "never"
    MAYBE = "maybe"
    ALWAYS = "always"


class Level(Enum):
    """Where rows can be excluded, with the names that people read."""

    FILES = "files"
    ROW_GROUPS = "row groups"
    BLOOM_FILTERS = "Bloom filters"
    DICTIONARIES = "dictionaries"
    BITMAPS = "bitmap indexes"
    PAGES = "pages"
    ROWS = "rows"
