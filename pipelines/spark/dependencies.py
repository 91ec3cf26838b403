"""The libraries that workers need beside our archive, packed as they are installed here.

Unpacked by `spark.archives` beside a task they serve workers whose Python has none of them. They are this machine's:
workers need its processor, its operating system and its minor version of Python. Nothing is downloaded.
"""

import re
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from pipelines.errors import ConfigError
from pipelines.spark.package import REQUIREMENTS
from scan_core.private_files import whole_file

_LEFT_OUT = frozenset({"__pycache__", "tests"})
_FROM_SPARK = frozenset({"pyspark", "py4j"})
"""Comes with Spark itself."""


def dependencies_path(folder: Path) -> Path:
    """Named by what the machines of the workers must be."""
    platform = re.sub(r"\W+", "_", sysconfig.get_platform())
    return folder / f"nevermore-dependencies-cp{sys.version_info.major}{sys.version_info.minor}-{platform}.tar.gz"


def pack_dependencies(folder: Path) -> Path:
    """Write the archive of libraries into a folder.

    Raises:
        ConfigError: a library is missing here, or the folder cannot be written.
    """
    path = dependencies_path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            whole_file(path, 0o666) as sink,
            tarfile.open(fileobj=sink, mode="w:gz", compresslevel=1) as archive,
        ):
            for one in required_distributions():
                for name, file in installed_files(one):
                    archive.add(file, name, recursive=False)
    except OSError as error:
        raise ConfigError(f"cannot write the libraries of workers to {folder}: {error}") from error
    return path


def required_distributions() -> list[Distribution]:
    """What tasks import, and what that requires in turn, as installed here."""
    from packaging.requirements import Requirement

    found: dict[str, Distribution] = {}
    missing = [(name, True) for name in REQUIREMENTS]
    while missing:
        name, is_needed = missing.pop()
        if name in found or name in _FROM_SPARK:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError as error:
            if is_needed:
                raise ConfigError(f"{name} is not installed here, so it cannot be packed for workers") from error
            continue
        for text in found[name].requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                missing.append((_normal(requirement.name), False))
    return [found[name] for name in sorted(found)]


def installed_files(one: Distribution) -> Iterator[tuple[str, Path]]:
    """(place below site-packages, file) of one library, without its scripts and tests.

    Raises:
        ConfigError: it does not tell its files.
    """
    if one.files is None:
        raise ConfigError(f"{one.metadata['Name']} does not tell its files; install it from a wheel")
    for file in one.files:
        if ".." not in file.parts and not _LEFT_OUT & set(file.parts) and (path := Path(str(file.locate()))).is_file():
            yield str(file), path


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
