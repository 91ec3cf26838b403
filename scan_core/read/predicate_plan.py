"""The predicate of a scan in one data file: a step per conjunct, and which of them statistics decide beforehand.

Loaded only where there is a predicate: expressions and their kernels are a quarter of the engine.
"""

from collections.abc import Callable, Mapping, Sequence

from scan_core.expr.bound import BoundExpr, Column, Comparison, InSet, Member, walk
from scan_core.expr.nodes import BoundPredicate, leaf_ids
from scan_core.prune.bounds import ExcludesOf, match_conjuncts
from scan_core.prune.match import Match
from scan_core.read.file_reader import ColumnStatistics
from scan_core.read.metadata_columns import METADATA_IDS, MetadataSource, metadata_fields, partition_member
from scan_core.read.predicate_step import PredicateStep
from scan_core.read.projection import Constant, FileProjection
from scan_core.read.row_filter import ValueSource
from scan_core.schema import Type
from scan_core.snapshot import DataFile
from scan_core.split import ScanContext


class PredicatePlan:
    """The predicate of `context`, resolved for one data file."""

    def __init__(self, context: ScanContext, data_file: DataFile, projection: FileProjection) -> None:
        """Resolve the columns of every conjunct; MalformedTableError if a required one is missing."""
        self._context = context
        self._data_file = data_file
        self._projection = projection
        self._predicate = context.predicate or BoundPredicate("true", ())
        self.steps: Sequence[PredicateStep] = [
            PredicateStep(conjunct, {i: self._source(i, conjunct) for i in leaf_ids(conjunct)}, index)
            for index, conjunct in enumerate(self._predicate.conjuncts)
        ]
        self.types: Mapping[int, Type] = {
            node.field_id: node.type
            for conjunct in self._predicate.conjuncts
            for node in walk(conjunct)
            if isinstance(node, Column | Member)
            and node.field_id not in METADATA_IDS  # bounds tell nothing of what is inherited
        }

        self.equated_types: Mapping[int, Type] = {
            node.field_id: self.types[node.field_id]
            for conjunct in self._predicate.conjuncts
            for part in walk(conjunct)
            if isinstance(part, InSet) or (isinstance(part, Comparison) and part.operator in {"=", "<=>"})
            for node in walk(part)
            if isinstance(node, Column | Member) and node.field_id in self.types
        }

    def undecided(
        self, statistics_of: Callable[[int], ColumnStatistics | None], excludes_of: ExcludesOf | None = None
    ) -> tuple[Sequence[PredicateStep], Sequence[PredicateStep]] | None:
        """The conjuncts that may be untrue for some row so described, and those true for all.

        `excludes_of` gives tests of single values, where bounds leave an equality or IN list open.

        None if one of them is true for no row.
        """
        verdicts = match_conjuncts(self._predicate, statistics_of, excludes_of)
        if Match.NEVER in verdicts:
            return None
        pairs = list(zip(self.steps, verdicts, strict=True))
        return [s for s, v in pairs if v is not Match.ALWAYS], [s for s, v in pairs if v is Match.ALWAYS]

    def _source(self, field_id: int, conjunct: BoundExpr) -> ValueSource:
        """Where a column or member comes from, in the type of the schema that the predicate is bound to."""
        node = next(n for n in walk(conjunct) if isinstance(n, Column | Member) and n.field_id == field_id)
        data_file, specs = self._data_file, self._context.specs
        if field_id in METADATA_IDS:
            field = metadata_fields(specs, self._context.field_paths)[node.name]
            return MetadataSource(field, data_file, self._projection, specs)
        member = partition_member(field_id, data_file, specs[data_file.spec_id], node.type)
        return self._projection.leaf(field_id, node.type) if member is None else Constant(member)
