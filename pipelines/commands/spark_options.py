"""What commands that run Spark have in common: where it runs, if not where the config says, and what a person sees of it."""

import logging
import sys

import typer

MASTER = typer.Option(
    "--master",
    help="Where Spark runs, as for spark-submit; default: as the config says, or local[*].",
    show_default=False,
)
PROGRESS = ("scan_core.distribute.spark_session", "pipelines.published")
"""Loggers that say what goes on."""
REMOTE = typer.Option("--remote", help="A Spark Connect server instead, sc://host:15002.", show_default=False)


def tell_progress() -> None:
    """Show on a terminal that Spark starts and what is made: seconds pass in which nothing else is said."""
    if not sys.stderr.isatty():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    for name in PROGRESS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
