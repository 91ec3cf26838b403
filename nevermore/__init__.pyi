from nevermore.pipelines.errors import PipelineError as PipelineError
from nevermore.pipelines.ingest.project import delete as delete
from nevermore.pipelines.ingest.project import open_project as open_project
from nevermore.pipelines.ingest.project import open_table as open_table
from nevermore.pipelines.ingest.project import upsert as upsert
from nevermore.scan_core.expr.nodes import col as col
from nevermore.scan_core.model.errors import ScanError as ScanError

__version__: str
