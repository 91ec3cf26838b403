"""The commands `nevermore demo` and `nevermore ui`."""

import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from shutil import which
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nevermore.pipelines.cli.arguments import (
    CONFIG_VARIABLE,
)
from nevermore.pipelines.cli.terminal import print_grid
from nevermore.pipelines.config import DEFAULT_CONFIG
from nevermore.pipelines.wording import counted
from nevermore.scan_core.io import write_whole

if TYPE_CHECKING:
    from nevermore.assets.demo import DemoReport


def demo(
    directory: Annotated[Path, typer.Option("--dir", help="Folder of the demo project.")] = Path("demo"),
    rows: Annotated[int, typer.Option("--rows", help="Approximate number of change events.")] = 100_000,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of the simulation; the same seed gives the same shop.")
    ] = 42,
    first_day: Annotated[
        datetime | None,
        typer.Option(
            "--first-day",
            formats=["%Y-%m-%d"],
            help="Day of the first orders; by default the last simulated day is today.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as a JSON object.")] = False,
) -> None:
    """Simulate a shop, ingest its change feed, publish it with Spark and check the result.

    A second run finds nothing new and changes nothing.
    """
    from nevermore.assets.demo import run_demo
    from nevermore.pipelines.errors import ConfigError
    from nevermore.pipelines.simulate import SMALLEST_ROWS

    if rows < SMALLEST_ROWS:
        raise ConfigError(f"--rows must be at least {SMALLEST_ROWS}, not {rows}")
    logging.getLogger("dagster").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # Dagster's notices about preview features do not concern the demo
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
    counts = ("simulated", "rows_alive", "days")
    return {
        "nothing_new": report.found_nothing_new,
        **{name: getattr(report, name) for name in counts},
        "story": None if report.story is None else {**asdict(report.story), "why": report.story.why},
        "checks": [check.as_dict() for check in report.checks.values()],
    }


def _print(report: "DemoReport", directory: Path, seconds: float) -> None:
    if report.found_nothing_new:
        typer.echo("\nNothing new. No event was applied twice, no table changed.")
    for name, alive in report.rows_alive.items():
        events = "".join(f", {counted(count, kind)}" for kind, count in report.simulated.get(name, {}).items())
        typer.echo(f"{name}: {counted(alive, 'row')} alive{events}")
    typer.echo(f"\n{counted(len(report.days), 'day')} published by Spark. Checks against DuckDB:\n")
    rows = [
        (
            "passed" if check.passed else "FAILED" if check.blocks else "warns",
            check.table,
            check.name,
            check.counts(),
        )
        for check in report.checks.values()
    ]
    print_grid(("", "table", "check", "compared"), rows)
    if report.story is not None:
        typer.echo(_STORY.format(failed=" and ".join(report.story.failed), why=report.story.why))
    typer.echo(_NEXT_STEPS.format(directory=quote(str(directory)), activate=_activation()))
    typer.echo(f"{seconds:.0f} seconds, {counted(report.ingest_runs, 'ingest run')}")


def _activation() -> str:
    """The line that puts `nevermore` on the path of the shell; empty if it is there."""
    activate = Path(sys.prefix, "bin/activate")
    return "" if which("nevermore") or not activate.is_file() else f"  source {quote(str(activate))}\n"


_STORY = """
What went wrong on the fifth day
  A script appended deleted customers to shop.customers; {failed} failed,
  and the mirror was rolled back. In the project's folder, this explains where such a row came from:
  {why}
  Since that day some e-mail addresses lack their @, and an expectation warns of it: see `nevermore docs`.
"""

_NEXT_STEPS = """
Where things are
  {directory}/nevermore.yaml   the config
  {directory}/landing/         the events, as Debezium JSON
  {directory}/warehouse/       change logs, mirrors and the published table, in Iceberg

Try next
{activate}  cd {directory}
  nevermore scan shop.orders --where "amount > 600" --limit 5
  nevermore explain shop.orders
  nevermore check
  nevermore ui --dir .    the same assets in Dagster's UI
"""


GRACE_SECONDS = 15.0
"""Dagster stops its daemon, code server and web server one after the other, each within some seconds."""
_PACKAGES = Path(__file__).parents[2]
"""The folder that contains our packages."""


def ui(
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            help="Folder of the project, with its nevermore.yaml; by default this folder, or else its subfolder `demo`.",
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on.")] = 3000,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the address as a JSON object before the server starts.")
    ] = False,
) -> None:
    """Open a project in Dagster's UI: assets, partitions, backfills, schedules, checks. Ctrl-C stops it.

    Without `--dir` the config is `NEVERMORE_CONFIG`, `nevermore.yaml` here, or `demo/nevermore.yaml`.
    """
    from nevermore.pipelines.config.document import dagster_home, workspace

    if find_spec("dagster") is None:
        raise ModuleNotFoundError(name="dagster")
    config = _find_config(directory)
    home = dagster_home(config.parent)
    file = home / "workspace.yaml"
    write_whole(file, workspace(config.parent, _PACKAGES))
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        CONFIG_VARIABLE: str(config),
        # a folder of the user with the name of one of our packages must not be imported instead of it
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
    raise typer.Exit(
        _run_group(
            [sys.executable, "-P", "-m", "dagster", "dev", "-w", str(file), "-h", host, "-p", str(port)], environment
        )
    )


def _find_config(directory: Path | None) -> Path:
    from nevermore.pipelines.config.document import find_config
    from nevermore.pipelines.errors import ConfigError

    path = find_config() if directory is None else directory / DEFAULT_CONFIG
    if path is None or not path.is_file():
        raise ConfigError(
            f"no {path or 'nevermore.yaml and no demo/nevermore.yaml'}: `nevermore init` writes a config, `nevermore demo` "
            "makes a project; or give its folder with --dir"
        )
    return path.resolve()


def _run_group(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command in a process group of its own, and end the whole group when the command or this process ends.

    Returns:
        The command's exit code; 0 if a signal asked for the end.
    """
    stopping = False
    process: subprocess.Popen[bytes] | None = None
    requests = iter((signal.SIGINT,))  # Dagster ends its own children in order; a second request would cut it short

    def ask() -> None:
        if process is not None:
            for request in requests:
                process.send_signal(request)

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True
        ask()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    # also if this process is killed: a second Dagster beside one that was left behind would start the same runs
    ending = ["setpriv", "--pdeathsig", "INT"] if which("setpriv") else []  # Linux alone has it
    process = subprocess.Popen([*ending, *command], env=environment, start_new_session=True)  # noqa: S603 - our own interpreter
    if stopping:  # before there was a process
        ask()
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=GRACE_SECONDS)
                return 0 if stopping else code
            if stopping:  # it had its time to end in order
                return 0
    finally:
        # end the rest of the group: first by request, then by force
        for number, seconds in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 1.0)):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=seconds)
