"""The command for Spark's workers: `nevermore spark-package`."""

from pathlib import Path
from typing import Annotated

import typer


def spark_package(
    output: Annotated[Path, typer.Option("--output", help="Folder for the archives.")] = Path("dist"),
    with_dependencies: Annotated[
        bool,
        typer.Option("--with-dependencies", help="Also pack the libraries, for workers whose Python lacks them."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Build the archive that `spark-submit --py-files` and `spark: {package: ...}` take to the workers."""
    from pipelines.spark.package import build_package, pack_dependencies

    package = build_package(output)
    libraries = pack_dependencies(output) if with_dependencies else None
    if as_json:
        import orjson

        facts = {"package": str(package.path), "requirements": package.requirements}
        typer.echo(orjson.dumps(facts if libraries is None else {**facts, "dependencies": str(libraries)}))
        return
    typer.echo(f"{package.path}\n  spark-submit --py-files {package.path} ...")
    if libraries is not None:
        typer.echo(
            f"{libraries}\n  spark-submit --archives {libraries}#nevermore --conf spark.executorEnv.PYTHONPATH=./nevermore ..."
        )
    else:
        typer.echo(f"workers need: {' '.join(package.requirements)}")
