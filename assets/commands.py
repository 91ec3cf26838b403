"""The commands `nevermore demo` and `nevermore ui`.

The processes that `ui` starts end together.
"""

import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.arguments import CONFIG_VARIABLE, DEFAULT_CONFIG

if TYPE_CHECKING:
    from collections import Counter

    from rich.table import Table

    from assets.demo import DemoReport


def demo(
    directory: Annotated[Path, typer.Option("--dir", help="The demo's project.")] = Path("demo"),
    rows: Annotated[int, typer.Option("--rows", help="Change events in all, roughly.")] = 100_000,
    seed: Annotated[int, typer.Option("--seed", help="The same seed simulates the same shop.")] = 42,
    first_day: Annotated[
        datetime | None,
        typer.Option(
            "--first-day",
            formats=["%Y-%m-%d"],
            help="Day of the first orders; by default the simulated days end today.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as an object.")] = False,
) -> None:
    """Simulate a shop, ingest its change feed, publish it with Spark, prove the result.

    A second run finds nothing new and changes nothing.
    """
    from assets.demo import run_demo
    from pipelines.errors import ConfigError
    from pipelines.simulate import SMALLEST_ROWS

    if rows < SMALLEST_ROWS:
        raise ConfigError(f"--rows must be at least {SMALLEST_ROWS}, not {rows}")
    logging.getLogger("dagster").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # Dagster's notes on preview features are not the demo's subject
    began = time.monotonic()
    report = run_demo(
        directory,
        seed=seed,
        rows=rows,
        say=lambda text: typer.echo(text, err=True),
        first_day=None if first_day is None else first_day.date(),
    )
    seconds = time.monotonic() - began
    if as_json:
        import orjson

        typer.echo(orjson.dumps({**_document(report), "seconds": round(seconds, 1)}))
    else:
        _print(report, directory, seconds)
    raise typer.Exit(0 if report.passed else 1)


def _document(report: "DemoReport") -> dict[str, Any]:
    return {
        "nothing_new": report.found_nothing_new,
        "simulated": report.simulated,
        "change_logs": report.change_logs,
        "mirrors": report.mirrors,
        "rows_alive": report.rows_alive,
        "published": report.published,
        "days": report.days,
        "checks": [
            {"table": c.asset, "check": c.name, "passed": c.passed, "compared": c.compared}
            for c in report.checks.values()
        ],
    }


def _print(report: "DemoReport", directory: Path, seconds: float) -> None:
    from rich.console import Console

    console = Console(highlight=False, width=None if Console().is_terminal else 110)
    if report.found_nothing_new:
        console.print("\n[bold]Nothing new.[/bold] No event was applied twice, no table changed.\n")
    else:
        if report.simulated:
            console.print(_grid("Change events", report.simulated, _columns_of(report.simulated)))
        console.print(
            _grid("Mirrors: data files and equality-delete files", report.mirrors, _MIRROR_COLUMNS, report.rows_alive)
        )
        if report.published:
            console.print(_grid(f"Published by Spark, {len(report.days)} days", report.published, _PUBLISHED_COLUMNS))
    console.print(_checks(report))
    console.print(_where(directory), soft_wrap=True)
    console.print(f"[dim]{seconds:.0f} seconds, {report.ingest_runs} ingest runs[/dim]")


_MIRROR_COLUMNS = {
    "commits": "commits",
    "data files written": "data files",
    "rows written": "rows",
    "delete files written": "delete files",
    "deleted keys written": "delete rows",
}
_PUBLISHED_COLUMNS = {
    "dagster/partition_row_count": "rows",
    "rows read": "rows read",
    "rows removed by deletes": "removed by deletes",
    "bytes read": "bytes read",
    "bytes skipped": "bytes skipped",
}


def _columns_of(counts: Mapping[str, "Counter[str]"]) -> dict[str, str]:
    return {kind: f"{kind}s" for kind in sorted({kind for row in counts.values() for kind in row})}


def _grid(
    title: str,
    counts: Mapping[str, "Counter[str]"],
    columns: Mapping[str, str],
    alive: Mapping[str, int] | None = None,
) -> "Table":
    from rich.table import Table

    grid = Table(title=title, title_justify="left", title_style="bold", show_edge=False, pad_edge=False)
    grid.add_column("table")
    for heading in [*columns.values(), *(["rows alive"] if alive is not None else [])]:
        grid.add_column(heading, justify="right")
    for name, row in counts.items():
        cells = [f"{row[column]:,}" for column in columns]
        grid.add_row(name, *cells, *([f"{alive[name]:,}"] if alive is not None else []))
    return grid


def _checks(report: "DemoReport") -> "Table":
    from rich.table import Table

    grid = Table(
        title="Checks against DuckDB", title_justify="left", title_style="bold", show_edge=False, pad_edge=False
    )
    for heading in ("", "table", "check", "compared"):
        grid.add_column(heading, overflow="fold")
    for check in report.checks.values():
        mark = "[green]passed[/green]" if check.passed else "[red]FAILED[/red]"
        compared = ", ".join(f"{count:,} {what}" for what, count in check.compared.items())
        grid.add_row(mark, check.asset, check.name, compared)
    return grid


def _where(directory: Path) -> str:
    return (
        f"\n[bold]Where things lie[/bold]\n"
        f"  {directory}/nevermore.yaml   the config\n"
        f"  {directory}/landing/         the events, as Debezium JSON\n"
        f"  {directory}/warehouse/       change logs, mirrors and the published table, in Iceberg\n"
        f"\n[bold]Try next[/bold]\n"
        f"  cd {directory}\n"
        f'  nevermore scan shop.orders --where "amount > 600" --limit 5\n'
        f"  nevermore explain shop.orders\n"
        f"  nevermore check\n"
        f"  nevermore ui --dir .    the same assets in Dagster's UI\n"
    )


GRACE_SECONDS = 15.0
"""Dagster stops its daemon, code server and web server one after the other, each within some seconds."""
_PACKAGES = Path(__file__).resolve().parents[1]
"""Where our packages lie."""


def ui(
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            help="The project's folder, with its nevermore.yaml; by default this one, else `demo` in it.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on.")] = 3000,
    as_json: Annotated[
        bool, typer.Option("--json", help="The address as an object, before the server starts.")
    ] = False,
) -> None:
    """Open a project in Dagster's UI: assets, partitions, backfills, schedules, checks. Ctrl-C stops it.

    Without `--dir` the config is `NEVERMORE_CONFIG`, `nevermore.yaml` here, or `demo/nevermore.yaml`.
    """
    from assets.dagster_home import dagster_home

    config = _config(directory)
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(dagster_home(config.parent)),
        CONFIG_VARIABLE: str(config),
        # a folder of the user's that is called as one of our packages must not be imported instead of it
        "PYTHONSAFEPATH": "1",
        # Dagster recommends another command for projects of its own layout
        "PYTHONWARNINGS": ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), "ignore::FutureWarning"])),
    }
    if as_json:
        import orjson

        typer.echo(orjson.dumps({"url": f"http://{host}:{port}", "config": str(config)}))
    else:
        typer.echo(f"Dagster's UI: http://{host}:{port} (Ctrl-C stops it)")
    sys.stdout.flush()
    module = ["-m", "assets.definitions", "--working-directory", str(_PACKAGES)]
    command = [sys.executable, "-P", "-m", "dagster", "dev", *module, "-h", host, "-p", str(port)]
    raise typer.Exit(_run_group(command, environment))


def _config(directory: Path | None) -> Path:
    from pipelines.errors import ConfigError

    if directory is not None:
        candidates = [directory / DEFAULT_CONFIG]
    elif named := os.environ.get(CONFIG_VARIABLE):
        candidates = [Path(named)]
    else:
        candidates = [DEFAULT_CONFIG, "demo" / DEFAULT_CONFIG]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        raise ConfigError(
            f"no {' and no '.join(map(str, candidates))}: `nevermore init` writes a config, `nevermore demo` makes a "
            "project; or name its folder with --dir"
        )
    return found.resolve()


def _run_group(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command with all processes that it starts in one group, which ends with this process.

    Returns:
        The command's exit code; 0 if a signal asked for the end.
    """
    stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            process.send_signal(signal.SIGINT)  # Dagster ends its own children in order

    process = subprocess.Popen(command, env=environment, start_new_session=True)  # noqa: S603 - our own interpreter
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        while True:
            try:
                code = process.wait(timeout=GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                if not stopping:
                    continue
                code = 0
            break
    finally:
        _end_group(process)
    return 0 if stopping else code


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """End whatever is left of the group: first by request, then by force."""
    for number, seconds in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 1.0)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=seconds)
