"""Ingest by Spark, whatever configs say."""

from nevermore.pipelines.ingest.feeds import Feed


def why_local(feed: Feed, _position: str | None) -> str | None:
    """Instead of `Feed.why_local`: Spark reads every feed of files and topics."""
    return None if feed.live is None else "a database"
