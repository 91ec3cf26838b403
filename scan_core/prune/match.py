"""What a statistic can tell about the rows it describes."""

from enum import Enum


class Match(Enum):
    """NEVER: no row matches. ALWAYS: every row does. MAYBE: look at the rows."""

    NEVER = "never"
    MAYBE = "maybe"
    ALWAYS = "always"
