"""`nevermore ui`: Dagster's UI over a project, as one group of processes that ends as a whole."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.table_argument import CONFIG_VARIABLE, DEFAULT_CONFIG

GRACE_SECONDS = 15.0
"""Dagster stops its daemon, code server and web server one after the other, each within some seconds."""
_PACKAGES = Path(__file__).resolve().parents[2]
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
