"""Spark sessions for commands and tests: local, quiet and offline by default, or on a cluster or Connect server."""

import atexit
import hashlib
import logging
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from itertools import islice
from pathlib import Path
from threading import Lock, Thread
from weakref import WeakKeyDictionary

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from sqlglot import exp

from nevermore import scan_core
from nevermore.scan_core.io.private_files import (
    PrivateFolder,
    UnsafeFileError,
    cache_folder,
    held_folder,
    temporary_folder,
)
from nevermore.scan_core.model.errors import MissingRuntimeError, OptionError
from nevermore.scan_core.spark.frames import register
from nevermore.scan_core.spark.package import SPARK_FAILURES, equip, is_local
from nevermore.scan_core.sql.query_shape import computes_by_queries, computes_in_unions

MINIMUM_JAVA = 17
_HINT = (
    f"Spark needs Java {MINIMUM_JAVA} or newer: install it (Debian and Ubuntu: `apt-get install openjdk-17-jre-headless`,"
    " macOS: `brew install openjdk@17`) and set JAVA_HOME if it is not on the PATH"
)


_ARCHIVES = "spark-classes"
_KEPT_ARCHIVES = 3
"""Archives of classes take 180 MB each; one for each Java and Spark that this user has used last."""
_CLASS_OPTIONS = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")


def find_java() -> tuple[Path, str]:
    """The `java` executable that Spark will start, and its full version.

    Raises:
        MissingRuntimeError: Java is missing, does not start, or is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    if java is None:
        raise MissingRuntimeError(f"no Java found; {_HINT}")
    answer = _version_of(Path(java))
    version = re.search(r'version "(\d+)(?:\.(\d+))?', answer)
    if version is None:
        raise MissingRuntimeError(f"{java} does not report its version; {_HINT}")
    major = int(version[2] or 0) if version[1] == "1" else int(version[1])
    if major < MINIMUM_JAVA:
        raise MissingRuntimeError(f"{java} is Java {major}; {_HINT}")
    return Path(java), answer


@cache
def _version_of(java: Path) -> str:
    """What `java -version` says; it is started once for all sessions of this process.

    Raises:
        MissingRuntimeError: it does not start.
    """
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 - JAVA_HOME and PATH are the user's
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingRuntimeError(f"{java} does not start ({error}); {_HINT}") from error
    return answer.stderr + answer.stdout


ARROW_BATCH_ROWS = 100_000
"""With Spark's default of 10,000 rows, a third of the time is per-batch overhead."""
LOCAL_SHUFFLE_PARTITIONS = 2 * (os.cpu_count() or 1)
"""Spark's default of 200 would start 200 tasks for ten rows on a laptop."""


_AWAITED = "Exception thrown in awaitResult"
_OF_JAVA = ("java.", "javax.", "org.apache.", "scala.")

_log = logging.getLogger(__name__)
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_WORKER_PYTHON = "spark.pyspark.python"
_QUERY_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
    "spark.sql.session.timeZone": "UTC",
}
"""Settings that a session can still change when Spark is already running."""
_CONSTRAINTS = "spark.sql.constraintPropagation.enabled"
_EXCLUDED_RULES = "spark.sql.optimizer.excludedRules"
_UNION_RULES = tuple(
    f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in ("PushProjectionThroughUnion", "CombineUnions")
)
"""They compute columns below a union; the second where one union is in another."""


_settings_lock, _starting_lock = Lock(), Lock()
_MODULES, _FIRST_LINES = b"WARNING: Using incubator modules", 8
"""What Java writes as it starts, after a line or two about its options."""
_held: "WeakKeyDictionary[SparkSession, dict[str, tuple[str | None, int]]]" = WeakKeyDictionary()
"""By name of a setting that blocks of `configured` have changed: its value before the first of them, and their number."""
_LOG4J2 = """\
status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
"""The gateway sets every logger to WARN unless its level equals the root's; task errors reach the caller as exceptions."""
_REPEATING_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark loggers that print, as JSON, what an exception already says."""


def spark_session(
    app_name: str = "nevermore",
    master: str = "local[*]",
    config: Mapping[str, str] | None = None,
    *,
    remote: str | None = None,
    py_files: Sequence[Path | str] | None = None,
) -> SparkSession:
    """Start a session configured for reading and writing with scan_core, or return the one already running.

    Nothing is downloaded; times are UTC. Local workers run the current Python; cluster workers run their own
    (`spark.pyspark.python`, `PYSPARK_PYTHON`, else `python3`).

    Args:
        app_name: name in Spark's logs.
        master: as `spark-submit --master`.
        config: settings that override the defaults; Java options are appended to the defaults.
        remote: a Spark Connect server, `sc://host:15002`, instead of `master`.
        py_files: archives of Python code for the workers; None sends this code to those on other machines.

    Raises:
        MissingRuntimeError: no Java 17 or newer.
        OptionError: a session of the other kind (classic or Connect) runs in this process, or the cluster is unreachable.
    """
    settings, java_options, archive = dict(config or {}), "", ""
    if remote is None:
        java, version = find_java()
        _choose_python(master, settings)
        builder = SparkSession.builder.appName(app_name).master(master)
        ours = _session_config(master)
        given = f"{settings.get(_JAVA_OPTIONS, '')} {os.environ.get('SPARK_SUBMIT_OPTS', '')}"
        archive = _class_archive(f"{java} {version}", given)
        java_options = " ".join(s[_JAVA_OPTIONS] for s in (ours, settings) if _JAVA_OPTIONS in s)
        settings = ours | settings | {_JAVA_OPTIONS: f"{archive} {java_options}".strip()}
    else:
        builder = SparkSession.builder.remote(remote)
        settings = _QUERY_SETTINGS | settings
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        is_first = SparkSession.getActiveSession() is None
        if is_first:
            _log.info("starting Spark at %s, which takes some seconds", remote or master)
        with _without_warning() if is_first and remote is None else nullcontext():
            try:
                session = builder.getOrCreate()
            except PySparkRuntimeError as error:
                if not archive or error.getCondition() != "JAVA_GATEWAY_EXITED":
                    raise
                _log.warning("Java ended with %s, which is removed; starting Spark without it", archive)
                _class_archives().keep_latest(0)
                session = builder.config(_JAVA_OPTIONS, java_options).getOrCreate()
        if is_first and remote is None and not re.match(r"local(\[|$)", master):
            # if the driver just exits, executors consider its tasks lost and start them again
            atexit.register(_stop, session)
        equip(session, py_files)
        register(session)
        for name in _REPEATING_LOGGERS:
            PySparkLogger.getLogger(name).disabled = True
    except PySparkRuntimeError as error:
        raise OptionError(
            f"Spark cannot run at {remote or master} in this process: {error}; stop the session that runs, or begin "
            "another process"
        ) from error
    except SPARK_FAILURES as error:
        raise OptionError(f"Spark does not start at {remote or master}: {spark_message(error)}") from error
    return session


@contextmanager
def _without_warning() -> Iterator[None]:
    """Java that is started meanwhile writes all to standard error but its line about a module of Spark's, which nobody can act on."""
    with _starting_lock:
        reading, writing = os.pipe()
        passed = os.dup(2)
        os.dup2(writing, 2)
        os.close(writing)
        # Java ends with this process, whose last lines it may keep; until then the thread must go on reading, or Java would wait
        Thread(target=_pass_on, args=(reading, passed), name="nevermore-java", daemon=True).start()
        try:
            yield
        finally:
            os.dup2(passed, 2)


def _pass_on(reading: int, passed: int) -> None:
    with open(reading, "rb") as source:
        for line in islice(source, _FIRST_LINES):
            if line.startswith(_MODULES):
                break
            _write(passed, line)
        while part := source.read1():  # progress bars are lines without an end
            _write(passed, part)


def _write(file: int, part: bytes) -> None:
    with suppress(OSError):  # whoever reads standard error may have gone
        os.write(file, part)


@contextmanager
def configured(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """A context in which a session has other settings; they are given back when the last such block of any thread ends."""
    with _settings_lock:
        held = _held.setdefault(session, {})
        for name, value in settings.items():
            before, number = held.get(name) or (session.conf.get(name, None), 0)
            if not number:
                session.conf.set(name, value)
            held[name] = before, number + 1
    try:
        yield
    finally:
        with _settings_lock:
            for name in settings:
                before, number = held.pop(name)
                if number > 1:
                    held[name] = before, number - 1
                    continue
                with suppress(*SPARK_FAILURES, OSError):  # a session that was lost keeps nothing
                    session.conf.unset(name) if before is None else session.conf.set(name, before)


def planning(session: SparkSession, query: exp.Query) -> AbstractContextManager[None]:
    """A context in which Spark can plan `query` over any frames; without it, bugs of Spark may make planning fail.

    While it is open, the session plans other queries in the same way: not wrong, but perhaps with fewer conditions pushed
    down. Then each setting has the value that it had before.
    """
    needed = {_CONSTRAINTS: "false"} if computes_in_unions(query) else {}
    if computes_by_queries(query):
        needed[_EXCLUDED_RULES] = ",".join(filter(None, (session.conf.get(_EXCLUDED_RULES, None), *_UNION_RULES)))
    return configured(session, needed)


def _stop(session: SparkSession) -> None:
    with suppress(*SPARK_FAILURES, OSError):  # the JVM may be gone
        session.stop()


def spark_message(error: Exception) -> str:
    """The relevant part of Spark's message: for a failed Python task, the error of the task itself."""
    while _AWAITED in str(error).partition("\n")[0] and isinstance(cause := getattr(error, "_cause", None), Exception):
        error = cause  # which another thread met while it collected rows
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, Py4JError):  # the first line only names the method that was called
        lines = [_without_class(line.removeprefix(": ")) for line in lines[1:]] or lines
        if _AWAITED in lines[0]:
            causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
            lines = [_without_class(line) for line in causes] or lines
    return next((line for line in reversed(lines) if _is_python_error(line)), lines[0] if lines else repr(error))


def _without_class(line: str) -> str:
    """Strip the exception class from `org.apache.spark.SparkException: [X] ...`."""
    name, separator, rest = line.partition(": ")
    return rest if separator and name.startswith(_OF_JAVA) and " " not in name else line


def _is_python_error(line: str) -> bool:
    name, _, rest = line.partition(":")
    return bool(rest) and name.endswith("Error") and " " not in name and not name.startswith(_OF_JAVA)


def _choose_python(master: str, settings: Mapping[str, str]) -> None:
    if is_local(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        _let_workers_import_scan_core()
    elif _WORKER_PYTHON in settings:  # only spark-submit reads it
        os.environ["PYSPARK_PYTHON"] = settings[_WORKER_PYTHON]


def _session_config(master: str) -> dict[str, str]:
    log_config = temporary_folder() / "log4j2.properties"  # Spark logs a dozen warnings before its own settings apply
    log_config.write_text(_LOG4J2)
    settings = {
        **_QUERY_SETTINGS,
        _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={log_config.as_uri()}",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.python.worker.reuse": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {
            "spark.sql.warehouse.dir": str(temporary_folder() / "warehouse"),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(LOCAL_SHUFFLE_PARTITIONS),
        }
    return settings


def _class_archive(java: str, given: str) -> str:
    """Options with which the driver maps the classes of an earlier session, or keeps its own for later ones when it ends.

    Loading and verifying classes is half of what it takes to start Spark. The archive is Java's own (JEP 350): Java ignores
    one of another version or class path, one without its header, which is written last, and one with a wrong checksum.
    """
    if any(option in given for option in _CLASS_OPTIONS) or SparkContext._gateway is not None:  # noqa: SLF001 - it runs
        return ""
    spark = f"{pyspark.__version__} {pyspark.__file__} {os.environ.get('SPARK_HOME', '')}"
    prefix = hashlib.sha256(f"{java} {spark}".encode()).hexdigest()[:16]
    try:
        folder = _class_archives()
        names = [name for name in sorted(folder.names()) if name.startswith(prefix) and _is_whole(folder, name)]
        path = folder.path / (names[0] if names else f"{prefix}-{secrets.token_hex(8)}.jsa")
        if re.search(r"[\s:;,'\"\\\\]", str(path)):  # they would end the option, or separate two archives
            return ""
        if names:
            os.utime(path)
        folder.keep_latest(_KEPT_ARCHIVES)
    except (OSError, UnsafeFileError) as error:
        _log.info("Spark's classes are loaded one by one: %s", error)
        return ""
    what = "SharedArchiveFile" if names else "ArchiveClassesAtExit"
    return f"-Xshare:auto -XX:{what}={path} -XX:+VerifySharedSpaces -Xlog:disable -Xlog:all=error:stderr"


def _class_archives() -> PrivateFolder:
    if (cached := cache_folder()) is None:
        raise UnsafeFileError("this user has no folder for caches")
    return held_folder(cached).folder(_ARCHIVES)


def _is_whole(folder: PrivateFolder, name: str) -> bool:
    with folder.read(name) as file:
        return any(file.read(4))


def _let_workers_import_scan_core() -> None:
    """Make Python workers import this copy of scan_core first.

    They inherit PYTHONPATH, not the `sys.path` that a test runner or notebook may have changed. Python puts the working
    directory first, where a folder of the user's may be called like one of our packages: here it comes last.
    """
    root = str(Path(scan_core.__file__).parents[2].resolve())
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if os.environ.setdefault("PYTHONSAFEPATH", "1"):
        paths.append(str(Path.cwd()))
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([root, *paths]))
