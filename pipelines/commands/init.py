"""`nevermore init`: a commented nevermore.yaml to start from, and a workspace.yaml for Dagster."""

from pathlib import Path
from typing import Annotated

import typer


def init(
    directory: Annotated[Path, typer.Option("--dir", help="Folder of the new project.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace a nevermore.yaml that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The path as an object.")] = False,
) -> None:
    """Write a commented nevermore.yaml to start from, and a workspace.yaml so that `dagster dev` opens the project."""
    from pipelines.config_template import WORKSPACE, config_template
    from pipelines.errors import ConfigError

    path = directory / "nevermore.yaml"
    if path.exists() and not force:
        raise ConfigError(f"{path} exists already; --force replaces it")
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(config_template(), encoding="utf-8")
    workspace = directory / "workspace.yaml"
    if not workspace.exists():  # one that is there may load other code, too
        workspace.write_text(WORKSPACE, encoding="utf-8")
    if as_json:
        import orjson

        typer.echo(orjson.dumps({"path": str(path)}))
    else:
        typer.echo(f"Wrote {path}. Edit it, then run: nevermore ingest --config {path} --once")
