"""What assets and checks are given at run time: the project, which is a config file and where Spark runs."""

import dagster as dg

from pipelines.catalog import open_catalog
from pipelines.config import Config, load
from pipelines.table_patterns import expanded


class Project(dg.ConfigurableResource):  # type: ignore[type-arg] # generic only for IO managers
    """The project whose nevermore.yaml is at `config_path`; the file is read anew by every step.

    Attributes:
        config_path: the nevermore.yaml.
        spark_master: where published tables are made, as `spark-submit --master`, instead of what the config says.
    """

    config_path: str
    spark_master: str | None = None

    def config(self) -> Config:
        """The validated config, with the tables that its patterns stand for by now.

        Raises:
            ConfigError: the file is missing or invalid.
        """
        config = load(self.config_path)
        return expanded(config, open_catalog(config)) if config.patterns else config
