"""The command for Spark's workers: `nevermore spark-package`."""

from pathlib import Path
from typing import Annotated

import typer

from nevermore.pipelines.cli.arguments import AsJson
from nevermore.pipelines.cli.terminal import print_result


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
