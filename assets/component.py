"""A project as a component of Dagster, for repositories that `dg` scaffolds: the same definitions as `nevermore.assets.definitions`."""

from pathlib import Path

import dagster as dg
from pydantic import BaseModel, Field

from nevermore.assets.definitions import load_project
from nevermore.pipelines.config.document import TEMPLATE
from nevermore.pipelines.config.project import write_config


class ScaffoldOptions(BaseModel):
    """Options of `dg scaffold defs nevermore.assets.component.NevermoreProject NAME`."""

    config: str = Field(
        default="nevermore.yaml", description="The config file, relative to the folder of the component."
    )


class _ProjectScaffolder(dg.Scaffolder[ScaffoldOptions]):
    """Writes defs.yaml, and next to it a commented config with its schema, unless there is one."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldOptions]:
        return ScaffoldOptions

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldOptions]) -> None:
        name = request.params.config
        path = request.target_path / name
        dg.scaffold_component(request, {"config": name})
        if not path.exists():
            write_config(path, TEMPLATE)


@dg.scaffold_with(_ProjectScaffolder)
class NevermoreProject(dg.Component, dg.Model, dg.Resolvable):
    """All assets, checks, jobs, schedules and sensors of a nevermore.yaml.

    Attributes:
        config: the config file, relative to the folder of the component.
        spark_master: where published tables are made, instead of what the config says.
    """

    config: str = Field(
        default="nevermore.yaml", description="The config file, relative to the folder of the component."
    )
    spark_master: str | None = Field(default=None, description="Spark master, instead of what the config says.")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions of the project.

        Raises:
            ConfigError: the config is missing or invalid, with its line.
        """
        return load_project(Path(context.path) / self.config, spark_master=self.spark_master)
