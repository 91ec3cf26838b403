"""What moves data: change events to change logs, mirrors and published tables."""

DISTRIBUTION = "nevermore-iceberg"
"""The name on the package index, where `nevermore` belongs to others; the command and the packages keep theirs."""


def own_version() -> str:
    """The version of this distribution as installed.

    Raises:
        PackageNotFoundError: the code runs without having been installed.
    """
    from importlib.metadata import version  # takes longer than all else that the command needs to start

    return version(DISTRIBUTION)
