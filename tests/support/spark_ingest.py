"""Importing it makes this process ingest every feed of files and topics with Spark, whatever configs say."""

from nevermore.pipelines.ingest.feeds import Feed
from tests.support.only_spark import why_local

Feed.why_local = why_local  # type: ignore[method-assign]
