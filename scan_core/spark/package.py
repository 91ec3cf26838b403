"""Packs our code for the workers of a Spark cluster.

Builds a zip that Spark puts on their path, and an archive of the libraries that it needs. The same code gives the same
bytes.
"""

import hashlib
import json
import os
import re
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions, version
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import chain
from pathlib import Path
from shutil import which
from typing import Any
from weakref import WeakSet

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from nevermore.scan_core.io import temporary_folder, whole_file
from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.native import machine_code_file

SPARK_FAILURES = (PySparkException, Py4JError)
"""PySpark maps only some of Java's exceptions to classes of their own; an aborted job is not among them."""

DISTRIBUTION = "nevermore-iceberg"
PACKAGES = ("pipelines", "scan_core")
NEEDED = (
    "cramjam", "fastavro", "numpy", "orjson", "pandas", "pyarrow", "pydantic", "pyiceberg", "pyroaring", "pyyaml", "sqlglot",
    "xxhash",
)  # fmt: skip
"""Libraries that tasks import: pandas is required by Spark itself, pyiceberg opens object stores."""
REQUIREMENTS = (*NEEDED, "llvmlite", "numba")
"""With the compiler, without which tasks use NumPy."""

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
        OptionError: the folder cannot be written.
    """
    name, code = machine_code_file()
    release = version(DISTRIBUTION)
    path = folder / f"nevermore-{release}-{code_digest()[:12]}-{Path(name).stem.removeprefix('kernels-')[:8]}.zip"
    requirements = pinned_requirements()
    if not path.exists():
        members = dict(_sources()) | {name: code, "requirements.txt": "\n".join(requirements).encode() + b"\n"}
        members[_FACTS] = json.dumps({"code": code_digest(), "version": release}).encode()
        members[f"nevermore_iceberg-{release}.dist-info/METADATA"] = (
            distribution(DISTRIBUTION).read_text("METADATA") or ""
        ).encode()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write(path, members)
        except OSError as error:
            raise OptionError(f"cannot write the Spark package to {folder}: {error}") from error
    return SparkPackage(path, requirements)


_equipped = WeakSet[SparkSession]()


def equip(session: SparkSession, archives: Sequence[Path | str] | None = None) -> None:
    """Send code to the workers of a session, once, and let one task try whether it runs there.

    Args:
        session: a session, classic or Connect. Workers that run this very Python have this code from the start.
        archives: archives of code to send; None for one of this code.

    Raises:
        OptionError: the workers cannot run this code.
    """
    is_classic = hasattr(session, "_jsparkSession")  # Connect has none
    is_here = is_classic and is_local(session.sparkContext.master)
    if is_here:  # Spark would take any `python3` of the path
        python = session.sparkContext.pythonExec = os.environ.get("PYSPARK_PYTHON", sys.executable)
        is_here = Path(which(python) or python).parent == Path(sys.executable).parent
    if session in _equipped or (is_here and not archives):
        return
    sent = ""
    try:
        if archives is None:
            archives = [build_package(temporary_folder() / "package").path]
        for file in map(str, archives):
            if is_classic:
                session.sparkContext.addPyFile(file)
            else:
                session.addArtifacts(file, pyfile=True)
    except SPARK_FAILURES as error:  # not fatal where it is installed
        sent = f", and it cannot be sent to them: {str(error).partition(chr(10))[0]}"
    if not is_here and (missing := session.range(1).select(_missing_modules()).first()[0]):
        raise OptionError(
            f"the Python of Spark's workers lacks {missing}{sent}; `nevermore spark-package --with-dependencies` packs "
            "the code and the libraries that workers need, see 'Run on a Spark cluster' in the documentation"
        )
    _equipped.add(session)


def _missing_modules() -> Any:
    """A column with the names of what the Python of a worker lacks; computed without Arrow, which it may lack too."""
    from pyspark.sql.functions import udf

    def missing() -> str:
        from importlib import import_module, util

        lacking = ", ".join(name for name in NEEDED if util.find_spec(name.replace("pyyaml", "yaml")) is None)
        try:
            import_module("nevermore.scan_core.spark.source")
        except ImportError as error:
            return lacking or error.name or str(error)
        return lacking

    missing.__module__ = "__main__"  # so that it is sent by its code, not by its name
    return udf(missing, "string", useArrow=False)()


def is_local(master: str) -> bool:
    """Whether workers run on this machine and inherit this process's environment."""
    return master.startswith("local")


def check_package(path: str) -> None:
    """Refuse an archive of other code than this; an archive on a remote file system is not checked.

    Raises:
        OptionError: no such archive, not one of ours, or of other code.
    """
    if "://" in path:
        return
    build = "build it with `nevermore spark-package`"
    try:
        with zipfile.ZipFile(path) as archive:
            facts = json.loads(archive.read(_FACTS))
    except FileNotFoundError as error:
        raise OptionError(f"spark.package: no archive {path}; {build}") from error
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise OptionError(f"spark.package: {path} is not an archive of this product ({error}); {build}") from error
    if facts.get("code") != code_digest():
        raise OptionError(
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
    return tuple(
        f"{name}=={version(name)}" for name in (*REQUIREMENTS, *(x for x in OPTIONAL if any(distributions(name=x))))
    )


def _sources() -> Iterator[tuple[str, bytes]]:
    face = ((f"nevermore/{name}", (files("nevermore") / name).read_bytes()) for name in ("__init__.py", "__init__.pyi"))
    ours = (_below(files(f"nevermore.{package}"), f"nevermore/{package}") for package in PACKAGES)
    return chain(face, *ours)


def _below(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            if entry.name not in {"__pycache__", "shipped"}:
                yield from _below(entry, f"{name}/{entry.name}")
        elif entry.name.endswith((".py", ".pyi", ".typed")):
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
        OptionError: a library is missing here, or the folder cannot be written.
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
        raise OptionError(f"cannot write the libraries of workers to {folder}: {error}") from error
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
                raise OptionError(f"{name} is not installed here, so it cannot be packed for workers") from error
            continue
        for text in found[name].requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                missing.append((canonicalize_name(requirement.name), False))
    return [found[name] for name in sorted(found)]


def installed_files(one: Distribution) -> Iterator[tuple[str, Path]]:
    """(place below site-packages, file) of one library, without its scripts and tests.

    Raises:
        OptionError: it does not list its files.
    """
    if one.files is None:
        raise OptionError(f"{one.metadata['Name']} does not list its files; install it from a wheel")
    for file in one.files:
        if ".." not in file.parts and not _LEFT_OUT & set(file.parts) and (path := Path(str(file.locate()))).is_file():
            yield str(file), path
