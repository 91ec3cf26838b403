"""Looks at the topics of a source before anything is read: rights, and how long the cluster keeps messages."""

from collections.abc import Iterator, Mapping, Sequence

from nevermore.pipelines.errors import PipelineError
from nevermore.pipelines.sources.kafka import KafkaTopics, TopicFacts
from nevermore.pipelines.sources.live import Finding

_SHORT_HOURS = 24.0
"""A retention that is shorter is overtaken by one failure over night."""
_NEEDED = ("READ", "DESCRIBE")


def findings(topics: KafkaTopics) -> Iterator[Finding]:
    """What can be said of the cluster and the topics without reading a message."""
    try:
        cluster, facts = topics.facts()
    except PipelineError as error:
        yield Finding("topics", "failed", str(error))
        return
    partitions = sum(len(fact.low) for fact in facts.values())
    yield Finding("topics", "ok", f"cluster {cluster}: {len(facts)} topics with {partitions} partitions")
    yield _rights(topics, facts)
    yield _retention(facts)


def _rights(topics: KafkaTopics, facts: Mapping[str, TopicFacts]) -> Finding:
    lacking = {name: [right for right in _NEEDED if right not in fact.rights] for name, fact in facts.items()}
    unreadable = {name: rights for name, rights in lacking.items() if rights and facts[name].rights}
    if unreadable:
        name, rights = next(iter(unreadable.items()))
        user = topics.source.properties.get("sasl.username")
        return Finding(
            "rights",
            "failed",
            f"topic {_shown(list(unreadable))}: {' and '.join(rights)} is missing: as an administrator, kafka-acls.sh --add "
            f"--allow-principal User:{user or 'NAME'} --operation Read --operation Describe --topic '{name}'",
        )
    unknown = [name for name, fact in facts.items() if not fact.rights]
    if unknown:
        return Finding(
            "rights", "warning", f"the cluster does not tell those of topic {_shown(unknown)}: reading shows them"
        )
    return Finding("rights", "ok", "all topics may be described and read")


def _retention(facts: Mapping[str, TopicFacts]) -> Finding:
    removed = [name for name, fact in facts.items() if any(fact.low.values()) and not fact.is_compacted]
    hours = {name: fact.retention_hours for name, fact in facts.items() if fact.retention_hours is not None}
    short = [name for name, known in hours.items() if known < _SHORT_HOURS]
    if short:
        return Finding(
            "retention",
            "warning",
            f"topic {_shown(short)} keeps messages for {hours[short[0]]:g} hours: changes are lost if nothing reads them for that "
            "long; set retention.ms to some days",
        )
    if removed:
        return Finding(
            "retention",
            "warning",
            f"topic {_shown(removed)} no longer has its oldest messages: a table that begins there lacks rows that did not change "
            "since, unless a snapshot follows; load them with nevermore resync TABLE --snapshot-source FILES",
        )
    unknown = [name for name, fact in facts.items() if fact.is_compacted is None]
    if unknown:
        return Finding("retention", "ok", f"not known for topic {_shown(unknown)}: DESCRIBE_CONFIGS is missing")
    least = min(hours.values(), default=None)
    kept = "messages are kept for ever" if least is None else f"messages are kept for {least / 24:,.1f} days or longer"
    return Finding("retention", "ok", f"{kept}; no topic lacks its beginning")


def _shown(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"
