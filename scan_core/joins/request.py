"""RuntimeFilter: what a scan carries of one join: columns, keys, whether the result depends on it, what was decided.

Frozen and picklable, part of the context that splits share. Where it is used is the business of `planning.py` on the
driver and `key_filter.py` on the workers.
"""

from dataclasses import dataclass, field, replace

from scan_core.joins.column_keys import KeyField, KeyRanges
from scan_core.joins.key_set import KeySet
from scan_core.joins.late_keys import LateKeys
from scan_core.prune.verdicts import Level

FilterKeys = KeySet | KeyRanges | LateKeys


@dataclass(frozen=True, slots=True)
class FilterDecision:
    """What the cost model decided for one plan.

    Attributes:
        run: names the plan, for what is measured while it runs.
        off: levels at which the filter is not used, each with the reason.
        share: of the rows in the files left that are expected to have a key; None if nothing tells.
    """

    run: str = ""
    off: tuple[tuple[Level, str], ...] = ()
    share: float | None = None

    def is_on(self, level: Level) -> bool:
        """Whether the filter is used there, at first."""
        return all(level is not other for other, _ in self.off)


@dataclass(frozen=True, slots=True)
class RuntimeFilter:
    """Rows whose columns are none of the keys are not wanted.

    Attributes:
        fields: the columns.
        keys: what they are compared with.
        is_exact: the result has no such row; otherwise it may have some, because somebody joins again.
        decision: of the cost model; everything is on before it is asked.
    """

    fields: tuple[KeyField, ...]
    keys: FilterKeys
    is_exact: bool
    decision: FilterDecision = field(default_factory=FilterDecision)

    @property
    def name(self) -> str:
        """For people."""
        kind = "semi join" if self.is_exact else "prefilter"
        return f"{kind} on {', '.join(f.name for f in self.fields)}"

    def newest(self) -> KeySet | KeyRanges | None:
        """The keys known now; None before late ones arrive."""
        return self.keys.newest(self.fields) if isinstance(self.keys, LateKeys) else self.keys

    def decided(self, decision: FilterDecision) -> "RuntimeFilter":
        """The same filter, used as decided."""
        return replace(self, decision=decision)
