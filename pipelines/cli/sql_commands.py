"""The commands of SQL engines: `nevermore sql` with DuckDB or Spark, and `nevermore spark-package` for Spark's workers."""

import json
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nevermore.pipelines.cli.arguments import (
    AsJson,
    AsOf,
    Format,
    Limit,
    Null,
    Output,
    ProjectConfig,
    Ref,
    ScanSettings,
    SnapshotId,
    build_scan,
    load,
    log_progress,
    parse_scan_options,
    parse_time,
)
from nevermore.pipelines.cli.row_output import write_rows
from nevermore.pipelines.cli.terminal import print_result
from nevermore.pipelines.config import DEFAULT_CONFIG
from nevermore.pipelines.errors import ConfigError, PipelineError
from nevermore.pipelines.ingest.project import Project, add_views, duckdb_connection
from nevermore.scan_core import ScanError
from nevermore.scan_core.io import require_package, user_folder
from nevermore.scan_core.parts import narrowed

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyRelation

    from nevermore.pipelines.config.project import Config
    from nevermore.scan_core import Scan, Table


def sql(
    query: Annotated[
        str | None,
        typer.Argument(metavar="QUERY", help="A query; without one, a prompt, or standard input."),
    ] = None,
    engine: Annotated[
        Literal["duckdb", "spark"],
        typer.Option(
            "--engine", help="What runs the query, and whose SQL it is: Spark runs as `spark` of the config says."
        ),
    ] = "duckdb",
    snapshot: SnapshotId = None,
    as_of: AsOf = None,
    ref: Ref = None,
    limit: Limit = None,
    output_format: Format = None,
    output: Output = None,
    null: Null = None,
    is_explained: Annotated[
        bool, typer.Option("--explain", help="Print how the tables would be read, without running the query.")
    ] = False,
    scan_option: ScanSettings = None,
    config: ProjectConfig = DEFAULT_CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="Print rows as JSON lines, --explain as an object.")] = False,
) -> None:
    """Run a query over the live rows of mirrors, published tables, change logs and quarantines, and print its result.

    DuckDB runs it in this process. Columns and conditions of the query are pushed down to the scans. With `--engine
    spark`, join keys are, too, and the result is collected in memory before it is printed.

    Example: `nevermore sql "select status, count(*) as n from shop.orders where day = date '2026-01-02' group by status"`
    """
    settings = load(config).with_scan(parse_scan_options(scan_option))
    if query is None and not sys.stdin.isatty():
        query = sys.stdin.read()
    if engine == "spark":
        if query is None or {snapshot, as_of, ref} != {None}:
            raise ConfigError("--engine spark needs a query, and cannot be combined with --snapshot, --as-of and --ref")
        rows = _spark_rows(settings, query, limit, is_explained=is_explained, as_json=as_json)
    else:
        scan_of = partial(build_scan, snapshot=snapshot, as_of=as_of, ref=ref)
        session = _Session(Project(settings), scan_of, None if snapshot or ref else as_of)
        if query is None:
            _prompt(session, null)
            return
        if is_explained:
            text = session.explain(query)
            print_result({"explain": text}, [text], as_json=as_json)
            return
        rows = session.rows(query, limit)
    if rows is not None:
        write_rows(rows, output_format, output, null=null, as_json=as_json)


class _Rows:
    """The result of a query, as a source of rows."""

    def __init__(self, rows: "pa.RecordBatchReader", failing: Callable[[], AbstractContextManager[None]]) -> None:
        columns, names = rows.schema.names, list[str]()
        for name in columns:  # those of a join may be equal
            numbered = (f"{name}_{n}" for n in count(1))
            names.append(name if name not in names else next(n for n in numbered if n not in {*columns, *names}))
        self.arrow_schema = rows.schema.empty_table().rename_columns(names).schema
        self._rows = rows
        self._failing = failing

    def to_batches(self) -> "Generator[pa.RecordBatch, None, None]":
        with self._failing():
            for batch in self._rows:
                yield batch.rename_columns(self.arrow_schema.names)


class _Session:
    """A connection of DuckDB, to which tables are added when a query names them.

    Attributes:
        project: the project whose tables are queried.
        views: its tables by the names of their views, when the last query began.
        narrowed: scans of the last query, with what its plan says about them.
    """

    def __init__(self, project: Project, scan_of: "Callable[[Table], Scan]", as_of: str | None = None) -> None:
        self._library = require_package("duckdb", "SQL", "nevermore-iceberg[sql]")
        self.project = project
        self.views: dict[str, str] = {}
        self.narrowed: dict[str, Scan] = {}
        self._scan_of, self._as_of = scan_of, as_of
        self._connection = duckdb_connection()

    def run(self, query: str, limit: int | None = None) -> "DuckDBPyRelation | None":
        """Let DuckDB plan a query over the tables that it names; None for a statement without rows.

        With a limit, scans begin with few rows: DuckDB asks for no more than it needs, unless it has to sort them.
        """
        self.views = self.project.sql_names
        try:
            with self._library.connect() as empty:  # DuckDB leaves out the names of views that exist
                used = empty.get_table_names(query, qualified=True)
        except self._library.Error:  # such as several statements, or joins whose columns depend on those of the tables
            used = {*self.views}
        names = {name.partition(" AS ")[0].replace('"', "").lower() for name in used}
        named = {table for view, table in self.views.items() if view.lower() in names}
        if self._as_of is None:
            scans = {name: self._scan_of(self.project.table(name)) for name in named}
        else:
            scans = self.project.as_of(parse_time(self._as_of), named)
        add_views(self._connection, self.views, scans)
        if (found := self._connection.sql(query)) is None:
            return None
        found = found if limit is None else found.limit(limit)
        select = found.sql_query()  # without the statements before it, which are not to be run again
        (_, plan), *_ = self._connection.execute(f"explain (format json) {select}").fetchall()
        self.narrowed = narrowed(json.loads(plan)[0], scans)
        if all(self.narrowed[name] is scan for name, scan in scans.items()):
            return found
        add_views(self._connection, self.views, self.narrowed)
        return self._connection.sql(select)

    def rows(self, query: str, limit: int | None) -> _Rows | None:
        """The rows of a query; None for a statement without any.

        Raises:
            ConfigError: DuckDB refuses it.
        """
        with self.failing():
            found = self.run(query, limit)
            return None if found is None else _Rows(found.to_arrow_reader(), self.failing)

    def explain(self, query: str) -> str:
        """DuckDB's plan of a query, and what else its scans do.

        Raises:
            ConfigError: DuckDB refuses it.
        """
        with self.failing():
            found = self.run(query)
            plan = "" if found is None else found.explain()
        return plan + "".join(f"{n} also: {p}\n" for n, scan in self.narrowed.items() for p in scan.predicates)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Raise a ConfigError with what DuckDB says."""
        try:
            yield
        except self._library.CatalogException as error:  # its own suggestions do not know the project
            first = str(error).partition("\n")[0]
            hint = _FOR_SPARK if "Function" in first else f" The project has {', '.join(self.views)}"
            raise ConfigError(f"the query failed: {first}{hint}") from error
        except (self._library.Error, OSError, ValueError) as error:  # the last two from a stream of Arrow
            raise ConfigError(f"the query failed: {error}{_FOR_SPARK}") from error


_FOR_SPARK = "\nThis is DuckDB's SQL; for Spark's, add --engine spark"


_DOT_COMMANDS = ".tables lists the tables, .schema TABLE its columns, .exit ends"


def _prompt(session: _Session, null: str | None) -> None:
    """Run queries that a person types, until the end of input."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory

    names = session.project.sql_names
    tables = {name: session.project.table(name).schema for name in dict.fromkeys(names.values())}
    columns = {field.name for schema in tables.values() for field in schema.fields}
    words = WordCompleter([*names, *sorted(columns), ".tables", ".schema", ".exit"], ignore_case=True, WORD=True)
    prompt = PromptSession[str](history=FileHistory(str(user_folder("sql").path / "history")), completer=words)
    typer.echo(f"DuckDB over {len(tables)} tables. End a query with a semicolon. {_DOT_COMMANDS}")
    text = ""
    while True:
        try:
            line = prompt.prompt("   ...> " if text else "nevermore> ").strip()
        except KeyboardInterrupt:
            text = ""
            continue
        except EOFError:
            return
        if not text and line.startswith("."):
            command, _, name = line.partition(" ")
            if command == ".exit":
                return
            if command == ".schema":
                line = f"describe {name};"
            else:
                typer.echo("\n".join(session.project.sql_names) if command == ".tables" else _DOT_COMMANDS)
                continue
        text = f"{text}\n{line}".strip()
        if not text.endswith(";"):
            continue
        started = time.monotonic()
        try:
            rows = session.rows(text, None)
            if rows is not None:
                write_rows(rows, None, None, null=null, as_json=False)
            typer.echo(f"{time.monotonic() - started:.2f} s")
        except (PipelineError, ScanError) as error:
            typer.echo(f"error: {error}", err=True)
        text = ""


def _spark_rows(
    settings: "Config", query: str, limit: int | None, *, is_explained: bool, as_json: bool
) -> _Rows | None:
    from nevermore.pipelines.iceberg.catalog import expanded
    from nevermore.pipelines.spark.session import project_session, query_tables
    from nevermore.scan_core.spark import SPARK_FAILURES, parse_sql, planning, reads_of_sql, spark_message

    parsed, settings = parse_sql(query), expanded(settings)
    if not as_json:
        log_progress()
    try:
        session = project_session(settings.spark)
        frame = query_tables(session, settings, query)
        if is_explained:
            reads = reads_of_sql(frame)
            lines = [line for name, read in reads.items() for line in read.described(name)]
            print_result({"reads": {name: read.as_dict() for name, read in reads.items()}}, lines, as_json=as_json)
            return None
        with planning(session, parsed.tree):
            return _Rows((frame if limit is None else frame.limit(limit)).toArrow().to_reader(), nullcontext)
    except SPARK_FAILURES as error:
        raise ConfigError(f"the query failed: {spark_message(error)}") from error


def spark_package(
    output: Annotated[Path, typer.Option("--output", help="Folder for the archives.")] = Path("dist"),
    with_dependencies: Annotated[
        bool,
        typer.Option("--with-dependencies", help="Also pack the required libraries, for workers without them."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build the archive of Nevermore for Spark workers, for `spark-submit --py-files` and `spark: {package: ...}`."""
    from nevermore.scan_core.spark import build_package, pack_dependencies

    package = build_package(output)
    libraries = pack_dependencies(output) if with_dependencies else None
    facts = {"package": str(package.path), "requirements": package.requirements}
    lines = [f"{package.path}\n  spark-submit --py-files {package.path} ..."]
    if libraries is None:
        lines.append(f"workers need: {' '.join(package.requirements)}")
    else:
        facts["dependencies"] = str(libraries)
        options = f"--archives {libraries}#nevermore --conf spark.executorEnv.PYTHONPATH=./nevermore"
        lines.append(f"{libraries}\n  spark-submit {options} ...")
    print_result(facts, lines, as_json=as_json)
