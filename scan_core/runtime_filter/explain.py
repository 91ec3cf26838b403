"""Runtime filters in plain text: what they compare with, where they are used, and what the last run made of them."""

from collections.abc import Iterator, Sequence

from scan_core.prune.match import Level
from scan_core.read.order import RUNS
from scan_core.runtime_filter.key_ranges import KeyRanges
from scan_core.runtime_filter.key_set import KeyLookup, KeySet
from scan_core.runtime_filter.request import FilterDecision, RuntimeFilter
from scan_core.split import ScanContext

_MOST_RANGES = 4


def explain_filters(context: ScanContext) -> Iterator[str]:
    """Of a plan: keys, estimate, and where each filter is used."""
    for filter_ in context.runtime_filters:
        yield f"  {filter_.name}: {_keys(filter_, context)}"
        decision = filter_.decision
        if decision.share is not None:
            yield f"    expected to keep {100 * decision.share:.3g} % of the rows of the files left"
        yield f"    used for {', '.join(_used(filter_))}"
        for reason, levels in _off(decision).items():
            yield f"    not used for {', '.join(levels)}: {reason}"


def explain_run(filters: Sequence[RuntimeFilter]) -> Iterator[str]:
    """Of the last run in this process: levels that were switched off on the way."""
    for filter_ in filters:
        for level, tally in RUNS.known(filter_.decision.run).items():
            if tally.switched_off:
                state = "was switched off" if tally.is_off else "was switched off for a while"
                yield f"  in the last run, the {filter_.name} {state} for {level.value}: it excluded too little there"


def _keys(filter_: RuntimeFilter, context: ScanContext) -> str:
    keys = filter_.newest()
    if keys is None:
        return "keys that are not known yet; splits begun after they arrive use them"
    if isinstance(keys, KeyRanges):
        if keys.ranges is None:
            return "ranges of a column of which nothing is known"
        shown = ", ".join(f"{low!r} to {high!r}" for low, high in keys.ranges[:_MOST_RANGES])
        more = f" and {len(keys.ranges) - _MOST_RANGES} more" if len(keys.ranges) > _MOST_RANGES else ""
        number = f"{len(keys.ranges)} range{'s' * (len(keys.ranges) != 1)}"
        return f"{number} by the statistics of the other side: {shown}{more}"
    return f"{keys.num_keys} distinct keys, {_forms(keys, keys.lookup(context.options))}"


def _forms(keys: KeySet, lookup: KeyLookup) -> str:
    if keys.num_keys == 0:
        return "no row has one"
    parts = [
        f"{column.field.name} from {column.lower!r} to {column.upper!r}"
        for column in lookup.columns
        if column.lower is not None
    ]
    form = {"DenseIndex": "a table over close numbers", "HashedIndex": "a Bloom filter before exact hashes"}
    parts.append(f"looked up in {form.get(type(lookup.index).__name__, 'exact hashes in partitions')}")
    return ", ".join(parts)


def _used(filter_: RuntimeFilter) -> list[str]:
    levels = [level.value for level in Level if filter_.decision.is_on(level) and level is not Level.ROWS]
    if filter_.is_exact:
        return [*levels, "rows (exactly)"]
    if isinstance(filter_.keys, KeyRanges):
        levels = [level.value for level in (Level.FILES, Level.ROW_GROUPS, Level.PAGES)]
    elif filter_.decision.is_on(Level.ROWS):
        levels.append("rows (as long as it pays)")
    return levels or ["nothing"]


def _off(decision: FilterDecision) -> dict[str, list[str]]:
    """Levels by the reason why they are off."""
    found: dict[str, list[str]] = {}
    for level, reason in decision.off:
        found.setdefault(reason, []).append(level.value)
    return found
