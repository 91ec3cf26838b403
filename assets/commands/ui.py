"""`nevermore ui`: Dagster's UI over a project."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer


def ui(
    directory: Annotated[Path, typer.Option("--dir", help="The project's folder, with its nevermore.yaml.")] = Path(
        "demo"
    ),
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on.")] = 3000,
    as_json: Annotated[
        bool, typer.Option("--json", help="The address as an object, before the server starts.")
    ] = False,
) -> None:
    """Open a project in Dagster's UI: assets, partitions, backfills, schedules, checks. Ctrl-C stops it."""
    from assets.dagster_home import dagster_home
    from pipelines.errors import ConfigError

    config = directory / "nevermore.yaml"
    if not config.is_file():
        raise ConfigError(f"no {config}: `nevermore demo --dir {directory}` makes one, or name another with --dir")
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(dagster_home(directory)),
        "NEVERMORE_CONFIG": str(config.resolve()),
    }
    if as_json:
        import orjson

        typer.echo(orjson.dumps({"url": f"http://{host}:{port}", "config": str(config.resolve())}))
    else:
        typer.echo(f"Dagster's UI: http://{host}:{port} (Ctrl-C stops it)")
    command = [sys.executable, "-m", "dagster", "dev", "-m", "assets.definitions", "-h", host, "-p", str(port)]
    try:
        code = subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - our own interpreter
    except KeyboardInterrupt:
        code = 0
    raise typer.Exit(code)
