"""The configuration: nevermore.yaml, its values and its sections."""

from pathlib import Path
from typing import Literal

DEFAULT_CONFIG = Path("nevermore.yaml")
"""The config of a project, in its folder."""
Engine = Literal["local", "spark", "auto"]
"""Where work is done: in this process, in tasks of Spark, or in tasks if there is much of it."""


def is_identifier(name: str) -> bool:
    """Whether this is the name of a catalog table rather than a path."""
    return "/" not in name and "\\" not in name and not Path(name).exists() and not name.endswith(".json")
