"""What moves data: change events to change logs, mirrors and published tables."""

from pathlib import Path

DEFAULT_CONFIG = Path("nevermore.yaml")
"""The config of a project, in its folder."""
DISTRIBUTION = "nevermore-iceberg"
"""The name on the package index, where `nevermore` belongs to others; the command and the packages keep theirs."""


def own_version() -> str:
    """The version of this distribution as installed.

    Raises:
        PackageNotFoundError: the code runs without having been installed.
    """
    from importlib.metadata import version  # takes longer than all else that the command needs to start

    return version(DISTRIBUTION)


def is_identifier(name: str) -> bool:
    """Whether this is the name of a catalog table rather than a path."""
    return "/" not in name and "\\" not in name and not Path(name).exists() and not name.endswith(".json")
