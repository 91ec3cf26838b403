"""Options of the commands that run Spark: where, if not where the config says."""

import typer

MASTER = typer.Option(
    "--master",
    help="Where Spark runs, as for spark-submit; default: as the config says, or local[*].",
    show_default=False,
)
REMOTE = typer.Option("--remote", help="A Spark Connect server instead, sc://host:15002.", show_default=False)
