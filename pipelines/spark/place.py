"""Where published tables are made: the Spark session that a config asks for, with our code on its workers.

What Spark itself is told is the business of scan_core's `spark_session.py`.
"""

from typing import Any

from pipelines.errors import ConfigError
from pipelines.spark.package import build_package, check_package
from pipelines.spark_section import LOCAL_MASTER, SparkConfig


def project_session(spark: SparkConfig) -> Any:
    """A session at the place that `spark` names, or the one that already runs.

    Raises:
        ConfigError: an archive that is missing or of other code, or a session of another kind runs.
        MissingRuntimeError: no Java.
    """
    from scan_core.distribute.spark_session import spark_session
    from scan_core.errors import OptionError

    archives = _archives(spark)
    try:
        return spark_session(
            master=spark.master or LOCAL_MASTER, config=spark.conf, remote=spark.remote, py_files=archives
        )
    except OptionError as error:
        raise ConfigError(str(error)) from error


def _archives(spark: SparkConfig) -> list[str]:
    from scan_core.distribute.spark_session import is_local
    from scan_core.private_files import temporary_folder

    match spark.package:
        case "installed":
            return []
        case "auto":
            if spark.remote is None and is_local(spark.master or LOCAL_MASTER):
                return []
            return [str(build_package(temporary_folder() / "package").path)]
        case path:
            check_package(path)
            return [path]
