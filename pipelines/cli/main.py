"""The command `nevermore`: finds its subcommands, and turns errors into one message and an exit code.

A subcommand is loaded only when it runs. Whatever takes time to load is imported in functions, so that signals are
handled a few milliseconds after Python has started.
"""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import typer


def usage_message(error: Any) -> str:
    """The message of a typer error."""
    from pydantic import ValidationError

    cause, parameter, context = error.__cause__, getattr(error, "param", None), getattr(error, "ctx", None)
    text = str(error.format_message()).rstrip(". ")
    if isinstance(cause, ValidationError) and parameter is not None:
        from nevermore.pipelines.config.document import wrong_value

        # the metavar of an argument is more specific than its name: [TABLE]...
        named = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar or parameter.name
        text = f"{named.strip('[].')}: {wrong_value(cause.errors(include_url=False)).rstrip('.')}"
    return text if context is None else f"{text}; see `{context.command_path} --help`"


COMMANDS = "nevermore.commands"
LOG_LEVEL = "--log-level"
LogLevel = Literal["debug", "info", "warning", "error"]
LOG_FORMAT = "--log-format"
LogFormat = Literal["text", "json"]
_PANELS = {
    "Start here": ("demo", "init", "doctor", "ui"),
    "Turn change events into tables": (
        "ingest",
        "run",
        "status",
        "quarantine",
        "replay",
        "resync",
        "rollback",
        "erase",
        "adopt",
        "recover",
        "publish",
        "simulate",
        "spark-package",
    ),
    "Keep tables fast": ("debt", "index", "convert", "compact", "trim-log", "expire", "orphans"),
}
_OTHER_PANEL = "Inspect tables"


_ENDED_BY = {
    "run": (signal.SIGINT, signal.SIGTERM),
    "ui": (signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
}
"""Commands that run until a signal asks for their end, which is then a success."""

_OBJECTS_PER_COLLECTION = 10_000
"""A plan or a footer is many objects that stay: looking through them as often as by default takes a tenth of the time of a scan."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit.

    Known errors and invalid usage are printed to standard error as `error: message`, with `--json` as an object, without a
    traceback unless `NEVERMORE_TRACEBACK=1` is set.

    Args:
        arguments: the words after `nevermore`; None for those of this process, which is then the command's own.
    """
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if arguments is None:
        gc.set_threshold(_OBJECTS_PER_COLLECTION, *gc.get_threshold()[1:])
        command = _named(words) or ""
        # until such a command handles its signals itself, it has begun nothing that must be finished
        for number in _ENDED_BY.get(command, ()):
            signal.signal(number, lambda *_: os._exit(0))
    _run(words)


def _run(words: Sequence[str]) -> None:  # noqa: C901 - one branch per kind of error
    import logging

    import typer

    from nevermore.scan_core.io import HidingStream, hide_in_error

    usage_error: type[Exception] = typer.BadParameter.__mro__[2]  # typer's base class of them has no public name
    if os.environ.get("NO_COLOR"):
        os.environ["TERM"] = "dumb"  # NO_COLOR alone does not remove bold and dim text from rich and Dagster
    # every error is printed below, once; Python's last-resort handler would print logged errors, with tracebacks
    if not os.environ.get("NEVERMORE_TRACEBACK"):
        logging.getLogger("nevermore").addHandler(logging.NullHandler())
    if not isinstance(sys.stderr, HidingStream):
        sys.stderr = HidingStream(sys.stderr)  # output of libraries, tracebacks, progress
    if not isinstance(sys.stdout, HidingStream):
        sys.stdout = HidingStream(sys.stdout)  # text only: rows are written as bytes
    output = _Output()
    try:
        sys.exit(_call(words))
    except typer.Abort:
        sys.exit(130)
    except usage_error as error:
        _print_error(usage_message(error), as_json="--json" in words)
        sys.exit(2)
    except Exception as error:  # unexpected errors are raised again, with their traceback
        if isinstance(error, BrokenPipeError) and output.lost_its_reader():  # `nevermore scan | head` is not an error
            sys.exit(0)
        if isinstance(error, ModuleNotFoundError) and (hint := _missing_extra(error)) is not None:
            _print_error(hint, as_json="--json" in words)
            sys.exit(2)
        from nevermore.pipelines.errors import explained

        if (message := explained(error)) is None or os.environ.get("NEVERMORE_TRACEBACK"):
            hide_in_error(error)
            raise
        _print_error(message, as_json="--json" in words)
        sys.exit(getattr(error, "exit_code", 1))
    finally:
        output.close()


def _call(words: Sequence[str]) -> int:
    """Run the command; its exit code."""
    try:
        return _application(words)(args=words, prog_name="nevermore", standalone_mode=False) or 0
    except SystemExit as ended:  # typer makes every broken pipe a silent exit code 1
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        raise


class _Output:
    """Standard output and standard error as the command was given them: rich replaces one whose reader is gone."""

    def __init__(self) -> None:
        self._given = {}
        for stream in (1, 2):
            with suppress(OSError):  # closed by the caller
                self._given[os.dup(stream)] = stream

    def lost_its_reader(self) -> bool:
        """Whether nobody reads the output any more; what is still written then goes nowhere."""
        import select

        streams = select.poll()
        for given in self._given:
            streams.register(given, select.POLLERR)
        lost = [self._given[given] for given, _ in streams.poll(0)]
        for stream in lost:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)
        return bool(lost)

    def close(self) -> None:
        """Give back the descriptors."""
        for given in self._given:
            os.close(given)


_EXTRAS = {
    "confluent_kafka": "kafka",
    "dagster": "dagster",
    "duckdb": "checks",
    "fastavro": "avro",
    "great_expectations": "checks",
    "llvmlite": "ingest",
    "numba": "ingest",
    "opentelemetry": "watch",
    "packaging": "spark",
    "pandas": "checks",
    "polars": "polars",
    "prometheus_client": "watch",
    "prompt_toolkit": "sql",
    "psycopg2": "postgres",
    "pymysql": "mysql",
    "py4j": "spark",
    "pyiceberg": "catalogs",
    "pyspark": "spark",
    "requests": "catalogs",
    "s3fs": "s3",
    "tenacity": "catalogs",
}
"""The extra of the distribution that has a package."""


def _missing_extra(error: ModuleNotFoundError) -> str | None:
    """What to install for a package that is not part of the plain distribution; None for other modules."""
    from importlib.util import find_spec

    package = (error.name or "").partition(".")[0]
    if package == "py4j":  # a part of it, whose import may come first
        package = "pyspark"
    if package not in _EXTRAS or find_spec(package) is not None:
        return None
    return (
        f"this needs {package}, which is not installed: pip install 'nevermore-iceberg[{_EXTRAS[package]}]', or 'nevermore-iceberg[all]' "
        "for the whole pipeline"
    )


def _named(words: Sequence[str]) -> str | None:
    """The command that is called."""
    # the values of these options name no command
    own = [word for before, word in pairwise(["", *words]) if before not in {LOG_LEVEL, LOG_FORMAT}]
    return next((word for word in own if not word.startswith("-")), None)


def _application(words: Sequence[str]) -> "typer.Typer":
    """The application with all commands, or with only the requested one, so that the others are not imported."""
    import logging
    from importlib.metadata import distribution

    import typer

    from nevermore.pipelines import DISTRIBUTION, own_version

    application = typer.Typer(
        name="nevermore",
        help="Change data capture into Apache Iceberg in Python. Deleted rows: nevermore.",
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )

    @application.callback(invoke_without_command=True)
    def _root(
        version: bool = typer.Option(False, "--version", help="Print the version and exit."),
        log_level: LogLevel | None = typer.Option(  # noqa: B008 - typer's way
            None,
            LOG_LEVEL,
            envvar="NEVERMORE_LOG_LEVEL",
            help="Log messages of this level and above to standard error.",
        ),
        log_format: LogFormat = typer.Option(  # noqa: B008 - typer's way
            "text",
            LOG_FORMAT,
            envvar="NEVERMORE_LOG_FORMAT",
            help="Log lines as text, or as JSON objects with table, run and snapshot; json logs from level info on.",
        ),
    ) -> None:
        level = log_level or ("info" if log_format == "json" else None)
        if level is not None:
            logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        if log_format == "json":
            from nevermore.pipelines.watch import JsonLines

            for handler in logging.getLogger().handlers:
                handler.setFormatter(JsonLines())
        if version:
            typer.echo(f"nevermore {own_version()}")
            raise typer.Exit

    # the entry points of all installed distributions would take 20 ms to read
    known = {point.name: point for point in distribution(DISTRIBUTION).entry_points.select(group=COMMANDS)}
    wanted = _named(words)
    panels = {command: panel for panel, commands in _PANELS.items() for command in commands}
    order = {command: number for number, command in enumerate(panels)}
    for name in [wanted] if wanted in known else sorted(known, key=lambda name: (order.get(name, len(order)), name)):
        application.command(name, rich_help_panel=panels.get(name, _OTHER_PANEL))(known[name].load())
    return application


def _print_error(message: str, *, as_json: bool) -> None:
    import typer

    if as_json:
        import orjson

        typer.echo(orjson.dumps({"error": message}), err=True)
    else:
        typer.echo(f"error: {message}", err=True)


if __name__ == "__main__":
    main()
