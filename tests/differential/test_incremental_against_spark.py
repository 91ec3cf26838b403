"""Incremental publishing makes what Spark makes in one go: random SQL over random changes, round after round.

Each round is a check: the partitions that differ from the round before are among those that changed rows are traced to,
and what is read for some partitions alone gives all of their rows; the same with keys, which are days and values of k.
Spark runs the queries, their traces and the narrowed
reads; all rounds of a query are one statement, over rows that stand in it.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from nevermore.pipelines.config.published import PublishedPartition
from nevermore.pipelines.publish.partition_lineage import OF_CHANGED, Reach
from nevermore.pipelines.publish.query import PublishedQuery, parse_query
from nevermore.pipelines.publish.refresh_plan import ChangedKeys, KeyColumns, trace_text
from tests.differential.published_queries import DAYS, KINDS, SCHEMAS, TABLES, Queries, Row, changed_rows, row_of
from tests.support.spark_session import SPARK_TEST

pytestmark = SPARK_TEST

ROUNDS = 5
EPOCH = date(1970, 1, 1)
BY_DAY = PublishedPartition.parse("day")
SPARK = {"long": "bigint", "timestamp": "timestamp_ntz", "date": "date", "string": "string"}
QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.leafNodeDefaultParallelism": "1",
}
"""Over few rows most of the time goes into compiling and shuffling."""


@pytest.fixture(scope="module", autouse=True)
def quick(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in QUICK}
    for name, value in QUICK.items():
        spark.conf.set(name, value)
    yield
    for name, old in before.items():
        spark.conf.unset(name) if old is None else spark.conf.set(name, old)


Slices = dict[str | None, Counter[Row]]
"""The rows of each day."""


@dataclass
class Rounds:
    """One query over states of its tables: the statement that computes all there is to compare, and the comparison."""

    query: PublishedQuery
    chance: random.Random
    states: list[dict[str, list[Row]]]
    unknown: list[bool] = field(default_factory=list)
    unknown_keys: list[bool] = field(default_factory=list)
    narrowed: dict[int, frozenset[int]] = field(default_factory=dict)
    keyed: dict[int, set[Row]] = field(default_factory=dict)
    found: Counter[str] = field(default_factory=Counter)

    def statement(self) -> str:
        tables = self.query.tables
        rows = {f"{t}_{n}": (t, state[t]) for n, state in enumerate(self.states) for t in tables}
        branches = [self._full(n) for n in range(len(self.states))]
        reaches, of_keys = self.query.reaches(SCHEMAS, BY_DAY), self.query.reaches_of_keys(SCHEMAS, ["day", "k"])
        views = self.query.view_names
        self.unknown, self.unknown_keys = [False], [False]
        for n in range(1, len(self.states)):
            changed = {t: changed_rows(self.states[n - 1][t], self.states[n][t]) for t in tables}
            rows |= {f"{t}_{n}{OF_CHANGED}": (t, of_table) for t, of_table in changed.items() if of_table}
            names = {views[t] + end: f"{t}_{n}{end}" for t in tables for end in ("", OF_CHANGED)}
            for what, places, k, unknown in (
                ("trace", reaches, "null", self.unknown), ("key", of_keys, "cast(k1 as string)", self.unknown_keys),
            ):  # fmt: skip
                traces = [r for r in places if any(r.table == views[t] and changed[t] for t in tables)]
                unknown.append(any(r.values is None for r in traces))
                branches += [
                    f"select '{what}' as what, {n} as n, cast(cast(k0 as date) as string) as day, {k} as k, null as v "
                    f"from ({trace_text(r.values, names)})"
                    for r in traces
                    if r.values is not None and not unknown[-1]
                ]
            branches += self._narrowed(n)
            branches += self._of_keys(n, of_keys)
        views_sql = ", ".join(f"{name} as ({relation(*of_table)})" for name, of_table in rows.items())
        return f"with {views_sql} " + " union all ".join(branches)

    def _full(self, n: int) -> str:
        return "select 'full' as what, " + _as_text(
            n, self.query.over_views({t: f"{t}_{n}" for t in self.query.tables})
        )

    def _narrowed(self, n: int) -> Iterator[str]:
        days = self.chance.sample(range(1, DAYS + 1), self.chance.choice([1, 1, 2]))
        values = frozenset((date(2026, 1, day) - EPOCH).days for day in days)
        conditions = self.query.conditions(SCHEMAS, BY_DAY, values)
        if not conditions:
            return
        self.narrowed[n] = values
        views = {t: f"{t}_{n}" for t in self.query.tables}
        views |= {t: f"(select * from {t}_{n} where {c.sql})" for t, c in conditions.items()}
        literals = ", ".join(f"date '2026-01-0{day}'" for day in days)
        yield f"select 'part' as what, {_as_text(n, self.query.over_views(views))} where day in ({literals})"

    def _of_keys(self, n: int, reaches: tuple[Reach, ...]) -> Iterator[str]:
        """The rows of some keys, from what is read for them alone."""
        days = [date(2026, 1, day) for day in range(1, DAYS + 1)]
        keys = pa.table({
            "day": pa.array([self.chance.choice(days) for _ in range(3)], pa.date32()),
            "k": pa.array([self.chance.choice([None, 1, 2, 3] if n == 1 else [1, 2, 3]) for _ in range(3)], pa.int64()),
        })  # fmt: skip
        changed = ChangedKeys(KeyColumns((), ()), keys, reaches)
        partners = changed.partners(self.query, SCHEMAS)
        if not partners:
            return
        views = {t: f"{t}_{n}" for t in self.query.tables}
        for table, values in partners.items():
            tuples = ", ".join(f"({', '.join(map(_literal, row.values()))})" for row in values.to_pylist())
            views[table] = f"(select * from {table}_{n} where ({', '.join(values.column_names)}) in ({tuples}))"
        self.keyed[n] = {tuple(None if v is None else str(v) for v in row.values()) for row in keys.to_pylist()}
        wanted = " or ".join(f"(day <=> {_literal(r['day'])} and k <=> {_literal(r['k'])})" for r in keys.to_pylist())
        yield f"select 'keyed' as what, {_as_text(n, self.query.over_views(views))} where {wanted}"

    def compare(self, rows: Sequence[tuple[str, int, str | None, str | None, str | None]]) -> None:
        full: list[Slices] = [{} for _ in self.states]
        parts: dict[int, Counter[Row]] = {n: Counter() for n in self.narrowed}
        keyed: dict[int, Counter[Row]] = {n: Counter() for n in self.keyed}
        traced: dict[int, set[str | None]] = {}
        traced_keys: dict[int, set[Row]] = {}
        for what, n, day, k, v in rows:
            if what == "full":
                full[n].setdefault(day, Counter())[k, v] += 1
            elif what == "part":
                parts[n][day, k, v] += 1
            elif what == "keyed":
                keyed[n][day, k, v] += 1
            elif what == "key":
                traced_keys.setdefault(n, set()).add((day, k))
            else:
                traced.setdefault(n, set()).add(day)
        for n in range(1, len(self.states)):
            days = full[n].keys() | full[n - 1].keys()
            differing = {day for day in days if full[n].get(day) != full[n - 1].get(day)}
            self.found["all" if self.unknown[n] else "fewer" if days - traced.get(n, set()) else "each"] += 1
            if not self.unknown[n]:
                assert differing <= traced.get(n, set()), (
                    self.query.sql,
                    n,
                    differing,
                    traced.get(n),
                    self.states[n - 1 : n + 1],
                )
            self._compare_keys(n, full[n - 1], full[n], traced_keys.get(n, set()), keyed.get(n))
            if n in parts:
                self.found["narrowed"] += 1
                wanted = {str(EPOCH + timedelta(days=value)) for value in self.narrowed[n]}
                expected = Counter({(d, *r): c for d in wanted for r, c in full[n].get(d, Counter()).items()})
                assert parts[n] == expected, (self.query.sql, n, wanted, self.states[n])

    def _compare_keys(
        self, n: int, before: Slices, after: Slices, traced: set[Row], keyed: Counter[Row] | None
    ) -> None:
        old, new = (Counter({(d, *r): c for d, of in full.items() for r, c in of.items()}) for full in (before, after))
        differing = {row[:2] for row in ((old - new) + (new - old))}
        if not self.unknown_keys[n]:
            self.found["keys"] += 1
            assert differing <= traced, (self.query.sql, n, differing, traced, self.states[n - 1 : n + 1])
        if keyed is not None:
            self.found["keyed"] += 1
            expected = Counter({row: count for row, count in new.items() if row[:2] in self.keyed[n]})
            assert keyed == expected, (self.query.sql, n, self.keyed[n], self.states[n])


def _literal(value: object) -> str:
    return "null" if value is None else f"date '{value}'" if isinstance(value, date) else f"{value}L"


def _as_text(n: int, sql: str) -> str:
    return f"{n} as n, cast(day as string) as day, cast(k as string) as k, cast(v as string) as v from ({sql})"


def relation(table: str, rows: Sequence[Row]) -> str:
    """Rows of a table as SQL; in one partition, so that nothing of them is shuffled."""
    columns: Mapping[str, str] = TABLES[table]
    casts = ", ".join(f"cast({name} as {SPARK[kind]}) as {name}" for name, kind in columns.items())
    texts = [
        ", ".join("null" if v is None else f"'{v}'" if isinstance(v, str) else str(v) for v in row) for row in rows
    ]
    values = ", ".join(f"({text})" for text in texts) or f"({', '.join(['null'] * len(columns))})"
    where = "" if rows else " where false"
    return f"select /*+ coalesce(1) */ {casts} from values {values} as t({', '.join(columns)}){where}"


def check(spark: SparkSession, seed: int, kinds: Sequence[str], depths: Sequence[int]) -> Counter[str]:
    chance = random.Random(seed)
    sql = Queries(chance, kinds).relation(chance.choice(depths))
    query = parse_query("random", sql, "day", TABLES)
    states = [
        {name: [row_of(chance, columns) for _ in range(chance.randint(0, 7))] for name, columns in TABLES.items()}
    ]
    for _ in range(ROUNDS):
        states.append(next_state(chance, states[-1]))
    rounds = Rounds(query, chance, states)
    statement = rounds.statement()
    try:
        rows = spark.sql(statement).collect()
    except PySparkException as error:
        raise AssertionError(f"seed {seed}: Spark refuses {sql}") from error
    rounds.compare([tuple(row) for row in rows])
    return rounds.found


def next_state(chance: random.Random, state: Mapping[str, list[Row]]) -> dict[str, list[Row]]:
    """Rows of some tables come, go, or change in a column."""
    following = {name: list(rows) for name, rows in state.items()}
    for name in chance.sample(list(TABLES), chance.choice([1, 1, 2])):
        rows = following[name]
        for _ in range(chance.randint(1, 2)):
            at = chance.randrange(len(rows)) if rows else None
            match chance.choice(["come", "go", "change", "change"]), at:
                case ("come", _) | (_, None):
                    rows.append(row_of(chance, TABLES[name]))
                case ("go", int(place)):
                    rows.pop(place)
                case (_, int(place)):
                    column = chance.randrange(len(rows[place]))
                    other = row_of(chance, TABLES[name])[column]
                    rows[place] = (*rows[place][:column], other, *rows[place][column + 1 :])
    return following


def test_incremental_runs_make_what_spark_makes_in_one_go(spark: SparkSession) -> None:
    found: Counter[str] = sum((check(spark, seed, KINDS, [1]) for seed in range(12)), Counter())
    assert found["fewer"] + found["each"] + found["all"] == 60
    assert found["fewer"] > 10
    assert found["narrowed"] > 10
    assert found["keys"] > 10
    assert found["keyed"] > 5


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_incremental_runs_make_what_spark_makes_in_one_go_in_many_queries(block: int, spark: SparkSession) -> None:
    first = 1_000 + 20 * block
    found: Counter[str] = sum((check(spark, seed, KINDS, [1, 2, 2, 3]) for seed in range(first, first + 20)), Counter())
    assert found["fewer"] + found["each"] + found["all"] == 100
