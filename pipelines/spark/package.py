"""Packs our code for the workers of a Spark cluster.

Builds a zip that Spark puts on their path, and an archive of the libraries that it needs. The same code gives the same
bytes. This module does not import pyspark.
"""

import hashlib
import json
import re
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import chain
from pathlib import Path

from nevermore.pipelines import DISTRIBUTION, own_version
from nevermore.pipelines.errors import ConfigError
from nevermore.scan_core.io import whole_file
from nevermore.scan_core.native import machine_code_file

PACKAGES = ("pipelines", "scan_core")
REQUIREMENTS = (
    "cramjam", "fastavro", "llvmlite", "numba", "numpy", "orjson", "pandas", "pyarrow", "pydantic", "pyiceberg", "pyroaring",
    "pyyaml", "sqlglot", "xxhash",
)  # fmt: skip
"""Libraries that tasks import: pandas is required by Spark itself, pyiceberg opens object stores."""

OPTIONAL = ("confluent-kafka", "obstore")
"""Libraries that tasks import where they read topics or object stores: packed if they are installed here."""

_FACTS = "nevermore-package.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Timestamp of every member, so that the same code gives the same bytes."""


@dataclass(frozen=True, slots=True)
class SparkPackage:
    """An archive for `spark.submit.pyFiles`.

    Attributes:
        path: path of the zip, named by version and code.
        requirements: libraries for the workers, pinned to the installed versions.
    """

    path: Path
    requirements: tuple[str, ...]


def build_package(folder: Path) -> SparkPackage:
    """Write the archive of this code into a folder, unless it is there already.

    Raises:
        ConfigError: the folder cannot be written.
    """
    name, code = machine_code_file()
    path = folder / f"nevermore-{own_version()}-{code_digest()[:12]}-{Path(name).stem.removeprefix('kernels-')[:8]}.zip"
    requirements = pinned_requirements()
    if not path.exists():
        members = dict(_sources()) | {name: code, "requirements.txt": "\n".join(requirements).encode() + b"\n"}
        members[_FACTS] = json.dumps({"code": code_digest(), "version": own_version()}).encode()
        members[f"{DISTRIBUTION.replace('-', '_')}-{own_version()}.dist-info/METADATA"] = (
            distribution(DISTRIBUTION).read_text("METADATA") or ""
        ).encode()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write(path, members)
        except OSError as error:
            raise ConfigError(f"cannot write the Spark package to {folder}: {error}") from error
    return SparkPackage(path, requirements)


def check_package(path: str) -> None:
    """Refuse an archive of other code than this; an archive on a remote file system is not checked.

    Raises:
        ConfigError: no such archive, not one of ours, or of other code.
    """
    if "://" in path:
        return
    build = "build it with `nevermore spark-package`"
    try:
        with zipfile.ZipFile(path) as archive:
            facts = json.loads(archive.read(_FACTS))
    except FileNotFoundError as error:
        raise ConfigError(f"spark.package: no archive {path}; {build}") from error
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"spark.package: {path} is not an archive of this product ({error}); {build}") from error
    if facts.get("code") != code_digest():
        raise ConfigError(
            f"spark.package: {path} holds other code ({facts.get('version')}) than the driver, but workers must run "
            f"the same code: {build} again"
        )


@cache
def code_digest() -> str:
    """A digest that identifies this code."""
    digest = hashlib.sha256()
    for name, content in sorted(_sources()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def pinned_requirements() -> tuple[str, ...]:
    """`name==version` of the installed library."""
    return tuple(f"{name}=={version(name)}" for name in (*REQUIREMENTS, *_installed(OPTIONAL)))


def _installed(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        try:
            version(name)
        except PackageNotFoundError:
            continue
        yield name


def _sources() -> Iterator[tuple[str, bytes]]:
    face = files("nevermore") / "__init__.py"
    ours = (_below(files(f"nevermore.{package}"), f"nevermore/{package}") for package in PACKAGES)
    return chain([("nevermore/__init__.py", face.read_bytes())], *ours)


def _below(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            if entry.name not in {"__pycache__", "shipped"}:
                yield from _below(entry, f"{name}/{entry.name}")
        elif entry.name.endswith((".py", ".typed")):
            yield f"{name}/{entry.name}", entry.read_bytes()


def _write(path: Path, members: dict[str, bytes]) -> None:
    with whole_file(path, 0o666) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(members):
            member = zipfile.ZipInfo(name, _EPOCH)
            member.external_attr = 0o644 << 16
            archive.writestr(member, members[name], zipfile.ZIP_DEFLATED)


_LEFT_OUT = frozenset({"__pycache__", "tests"})
_FROM_SPARK = frozenset({"pyspark", "py4j"})
"""Libraries that come with Spark itself."""


def dependencies_path(folder: Path) -> Path:
    """Path of the archive, named by the platform that the workers need."""
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
    """Libraries that tasks import and their requirements, as installed here."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found: dict[str, Distribution] = {}
    missing = [(name, True) for name in REQUIREMENTS] + [(name, False) for name in OPTIONAL]
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
                missing.append((canonicalize_name(requirement.name), False))
    return [found[name] for name in sorted(found)]


def installed_files(one: Distribution) -> Iterator[tuple[str, Path]]:
    """(place below site-packages, file) of one library, without its scripts and tests.

    Raises:
        ConfigError: it does not list its files.
    """
    if one.files is None:
        raise ConfigError(f"{one.metadata['Name']} does not list its files; install it from a wheel")
    for file in one.files:
        if ".." not in file.parts and not _LEFT_OUT & set(file.parts) and (path := Path(str(file.locate()))).is_file():
            yield str(file), path
