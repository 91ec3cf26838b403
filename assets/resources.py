"""What assets and checks are given at run time: the project, which is a config file and where Spark runs."""

import dagster as dg

from pipelines.config import Config, load

LOCAL_SPARK = "local[*]"


class Project(dg.ConfigurableResource):  # type: ignore[type-arg] # generic only for IO managers
    """The project whose nevermore.yaml is at `config_path`; the file is read anew by every step.

    Attributes:
        config_path: the nevermore.yaml.
        spark_master: where published tables are made, as `spark-submit --master`.
    """

    config_path: str
    spark_master: str = LOCAL_SPARK

    def config(self) -> Config:
        """The validated config.

        Raises:
            ConfigError: the file is missing or invalid.
        """
        return load(self.config_path)
