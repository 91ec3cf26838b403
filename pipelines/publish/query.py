"""The SQL of published tables: the mirrors that it names, what it needs of them, and how to run it.

Nothing here requires Spark or reads a table.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

from sqlglot import MappingSchema, exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import lineage
from sqlglot.optimizer.scope import build_scope

from nevermore.pipelines.config.project import Config, change_log_name
from nevermore.pipelines.config.published import NULL_KEY, PublishedConfig, PublishedPartition
from nevermore.pipelines.decode.feed import ORDER, POSITION
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.publish.partition_lineage import OF_CHANGED, Reach, ScanCondition, reaches, scan_condition
from nevermore.scan_core import OptionError, Schema
from nevermore.scan_core.spark import (
    DIALECT,
    PARTITION,
    PARTITION_END,
    PARTITION_START,
    SqlQuery,
    find_name,
    parse_sql,
    quoted_name,
    takes_all_columns,
)

PARTITION_PARAMETERS = (PARTITION, PARTITION_START, PARTITION_END)
"""Parameters of every partitioned table."""
_SIMPLE = frozenset({"expressions", "from_", "kind", "hint"})
"""Parts of a query that only selects columns; `kind` and `hint` must be empty."""
_READ_OTHERWISE = frozenset({"sample", "joins", "laterals", "pivots", "version", "when", "hints", "only", "partition"})
"""Parts of a table reference that would change the mirror's rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedQuery(SqlQuery):
    """A checked query.

    Attributes:
        name: name of the published table, for messages.
        partition: column of the result by which it is partitioned; None for none.
        history_key: for a history, the columns of the mirror that identify a row.
    """

    name: str
    partition: str | None
    history_key: tuple[str, ...] = ()

    def columns(self, schemas: Mapping[str, Schema]) -> dict[str, tuple[str, ...]]:
        """The columns that the query can need, by table; all of a table's columns where that is in doubt.

        Raises:
            ConfigError: the names of two of them differ only in case.
        """
        try:
            return SqlQuery.columns(self, schemas)
        except OptionError as error:
            raise ConfigError(f"published {self.name}: {error}") from error

    @property
    def depends_on_partition(self) -> bool:
        """Whether the text uses the partition's parameters, so that each partition has a query of its own."""
        return not self.parameters.isdisjoint(PARTITION_PARAMETERS)

    def column_sources(self, schemas: Mapping[str, Schema]) -> dict[str, tuple[tuple[str, str], ...]]:
        """The (table, column) pairs from which each column of the result is computed; empty where names are in doubt.

        Columns that only join or filter rows are not among them.
        """
        tree = self.in_full(schemas)
        if tree is None or takes_all_columns(tree):
            return {}
        by_view = {view: table for table, view in self.view_names.items()}
        names = {table: {name.lower(): name for name in schemas[table].names} for table in self.tables}
        try:
            nodes = lineage(None, tree, MappingSchema(), dialect=DIALECT, scope=build_scope(tree))
        except SqlglotError:  # two columns of the result without a name
            return {}
        found: dict[str, tuple[tuple[str, str], ...]] = {}
        for column, node in nodes.items():
            read = set()
            for leaf in node.walk():
                table = by_view.get(leaf.source.name) if isinstance(leaf.source, exp.Table) else None
                source = None if table is None else names[table].get(exp.to_column(leaf.name).name.lower())
                if table is not None and source is not None:
                    read.add((table, source))
            found[column] = tuple(sorted(read))
        return found

    def reaches(self, schemas: Mapping[str, Schema], partition: PublishedPartition) -> tuple[Reach, ...]:
        """How changed rows of each table reach partitions of the result; tables are named as in `view_names`."""
        # another run could give other rows for the same input, so any change could affect any partition
        if (reason := self.why_unrepeatable(schemas)) is not None:
            return self._unknown(reason)
        return self._slices(schemas, partition)

    def reaches_of_keys(self, schemas: Mapping[str, Schema], columns: Sequence[str]) -> tuple[Reach, ...]:
        """How changed rows of each table reach keys of the result: values of `columns` together."""
        if self.history_key and self.partition is None:  # its windows have one order, that of the log
            (log,) = self.view_names.values()
            texts = (_changed_keys(side, self.history_key, f"{log}{OF_CHANGED}") for side in ("key", "after"))
            return tuple(Reach(log, exp.maybe_parse(text, into=exp.Select, dialect=DIALECT)) for text in texts)
        if (reason := self.why_unrepeatable(schemas)) is not None:
            return self._unknown(reason)
        if self.depends_on_partition:
            return self._unknown("the SQL uses its partition")
        flat = self.traceable(schemas)
        return self._unknown(flat) if isinstance(flat, str) else reaches(flat, [c.lower() for c in columns])

    def _slices(self, schemas: Mapping[str, Schema], partition: PublishedPartition) -> tuple[Reach, ...]:
        """How changed rows reach partitions within one run, even if functions return something else in another run."""
        flat = self.traceable(schemas)
        if isinstance(flat, str):
            return self._unknown(flat)
        kind = "TIMESTAMP" if partition.unit == "hour" else "DATE"
        if partition.unit == "value":
            kinds = [e.type for e in flat.selects if e.alias_or_name.lower() == partition.column.lower()]
            kind = kinds[0].this.name if kinds and kinds[0] is not None else "UNKNOWN"
        return reaches(flat, [partition.column.lower()], kind)

    def _unknown(self, reason: str) -> tuple[Reach, ...]:
        return tuple(Reach(view, None, reason=reason) for view in self.view_names.values())

    def conditions(
        self, schemas: Mapping[str, Schema], partition: PublishedPartition, values: Collection[Any]
    ) -> dict[str, ScanCondition]:
        """Conditions on the rows of each table that matter for some partitions, for tables where they are certain.

        A table that the SQL names in several places is limited only where each place has a condition: a row that one of
        them needs must not be left out for another.
        """
        reaches = self._slices(schemas, partition)
        found = {}
        for table, view in self.view_names.items():
            conditions = [
                scan_condition(reach.expressions[0], schemas[table], partition, values)
                if reach.expressions and reach.final
                else None
                for reach in reaches
                if reach.table == view
            ]
            certain = [condition for condition in conditions if condition is not None]
            if not certain or len(certain) < len(conditions):
                continue
            texts = list(dict.fromkeys(condition.sql for condition in certain))
            found[table] = certain[0] if len(texts) == 1 else ScanCondition(" or ".join(f"({t})" for t in texts))
        return found


def parse_query(
    name: str,
    sql: str,
    partition: str | None,
    tables: Collection[str],
    parameters: Mapping[str, Any] | None = None,
    *,
    published: Collection[str] = (),
    case_sensitive: bool = False,
) -> PublishedQuery:
    """Parse the query of the published table `name` and check it against the tables of the config.

    `published` are tables that SQL cannot read, because they are published themselves. The text may write names in any
    letter case, unless it is `case_sensitive`.

    Raises:
        ConfigError: not a single SELECT, a syntax error, or a table or parameter that the config does not have.
    """
    given = parameters or {}
    try:
        texts = tuple(value for value in given.values() if isinstance(value, str))
        known = [*tables, *map(change_log_name, tables)]
        parsed = parse_sql(sql, texts, known, case_sensitive=case_sensitive)
    except OptionError as error:
        template = "; a parameter is written :partition, not {{ partition }}" if "{{" in sql else ""
        raise ConfigError(f"published {name}: {error}{template}") from error
    for table in parsed.tables:
        if table not in known:
            hint = did_you_mean(
                table,
                tables,
                f"the config has {', '.join(sorted(tables)) or 'no tables yet: nevermore ingest creates those of its patterns'}",
            )
            if find_name(table, published, case_sensitive=case_sensitive) is not None:
                hint = f"it is published itself, and SQL reads mirrors: {', '.join(sorted(tables))}"
            raise ConfigError(f"published {name}: no table {table}; {hint}")
    query = PublishedQuery(
        sql, parsed.tree, parsed.tables, parsed.texts, case_sensitive, name=name, partition=partition
    )
    _check_parameters(query, given)
    return query


def _check_names(query: PublishedQuery) -> None:
    for expression in query.tree.selects:
        # what makes several columns, or may, gets their names from Spark
        if not (expression.output_name or expression.is_star or isinstance(expression, _MAKES_COLUMNS)):
            text = expression.sql(dialect=DIALECT)
            raise ConfigError(f"published {query.name}: a column has no name: write `{text} as` and a name")


_MAKES_COLUMNS = (exp.UDTF, exp.Explode, exp.Inline, exp.Stack, exp.Anonymous)


def _check_parameters(query: PublishedQuery, given: Collection[str]) -> None:
    known = {*given, *(PARTITION_PARAMETERS if query.partition is not None else ())}
    for parameter in sorted(query.parameters - known):
        if parameter in PARTITION_PARAMETERS:
            raise ConfigError(
                f"published {query.name}: :{parameter} has no meaning, because the table has no partition"
            )
        if not parameter or parameter == "?":
            raise ConfigError(f"published {query.name}: parameters have names: write :partition, not ?")
        names = ", ".join(f":{name}" for name in sorted(known)) or "none"
        hint = did_you_mean(parameter, known, f"there are {names}", shown=":{}")
        raise ConfigError(f"published {query.name}: no parameter :{parameter}; {hint}")


def did_you_mean(name: str, known: Iterable[str], otherwise: str, *, cutoff: float = 0.4, shown: str = "{}") -> str:
    """Suggest the nearest of the known names, formatted with `shown`, or `otherwise` if none is near."""
    by_lower = {each.lower(): each for each in sorted(known)}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return f"did you mean {shown.format(by_lower[near[0]])}?" if near else otherwise


def mirror_of(config: Config, table: str) -> str:
    """The mirror whose change log a table is, or that it is itself."""
    return next((name for name in config.tables if change_log_name(name) == table), table)


def tables_read(config: Config, name: str) -> tuple[str, ...]:
    """Mirrors that the SQL of a published table names, or whose change logs.

    Raises:
        ConfigError: an unknown name, or SQL that cannot run.
    """
    return tuple(dict.fromkeys(mirror_of(config, table) for table in published_query(config, name).tables))


_HISTORY = """
with logged as ({logged}), changes as (
  select {new}, ordinal, op, after as row, unchanged, op <> 'u' or not ({same}) as begins, {at} as at
  from logged where op in ('r', 'c', 'u')
  union all
  select {old}, ordinal, 'd', null, null, true, {at} from logged where op = 'd' or (op = 'u' and not ({same}))
), truncates as (
  select lag(ordinal) over w as begun, ordinal as ended,
    min({at}) over (order by ordinal rows between current row and unbounded following) as ended_at
  from logged where op = 't' window w as (order by ordinal)
), sent as (
  select {names}, ordinal, op, at, ended, ended_at{sent}
  from changes left join truncates on (begun is null or ordinal > begun) and ordinal < ended
  window w as (partition by {names}, ended order by ordinal)
), complete as (
  select {names}, ordinal, op, at, ended, ended_at, struct({values}) as row, concat_ws(', ', {unknown}) as not_sent from sent
), versions as (
  select row, op, not_sent, at, least(ended_at, min(at) over (partition by {names} order by ordinal
      rows between 1 following and unbounded following)) as ends,
    lag(op) over w as op_before, lag(row) over w as row_before, lag(not_sent) over w as not_sent_before,
    lead(ordinal) over w is null and ended is null as is_current
  from complete window w as (partition by {names}, ended order by ordinal)
)
select version.*, operation, not_sent, valid_from, valid_to, is_current from (
  select if(op = 'd', row_before, row) as version, op as operation, if(op = 'd', not_sent_before, not_sent) as not_sent,
    at as valid_from, if(ends < at, at, ends) as valid_to, is_current
  from versions where op <> 'd'{deleted}
)
"""
"""The versions of each row, by the changes that made them: a delete ends the last one, or makes one with its values.

A version ends when any change after it was made: one that came late, after its successor, was never valid.
"""
_LOGGED = "select op, key, after, unchanged, source_ts, ingested_at, {place} as ordinal from {log}"
_EACH_ONCE = """(select *, min(block) over (
    partition by source_file, source_offset, source_order, op, key, ingested_at) as first_block
  from (select op, key, after, transform(unchanged, name -> replace(name, chr(0), '')) as unchanged, source_ts, ingested_at,
    source_file, source_offset, source_order, ordinal,
    ordinal - row_number() over (partition by source_file, source_offset, source_order order by ordinal) as block from {log}))
  where block = first_block"""
"""A log in the order of `order_by`: changes that came late are followed by copies of those that belong after them.

Successive ordinals of one event are a block: the event itself, which may hold several changes of a key, or its copies. What late
changes took from the log counts as not sent.
"""
_SENT = """,
    last_value(case when begins or not array_contains(unchanged, {text}) then
      named_struct('value', row.{name}, 'is_known', not coalesce(array_contains(unchanged, {text}), false)) end, true)
    over w as s{i}"""
"""A column as its row was last sent; what went before a create, a delete or another key is a different row."""


def _each(template: str, names: Sequence[str], separator: str = ", ") -> str:
    """SQL for each of these columns: {i} is its number, {name} the quoted name and {text} its text."""
    texts = (exp.Literal.string(name).sql(dialect=DIALECT) for name in names)
    each = enumerate(zip(names, texts, strict=True))
    return separator.join(template.format(i=i, name=quoted_name(name), text=text) for i, (name, text) in each)


def _changed_keys(side: str, key: Sequence[str], log: str) -> str:
    """SQL for the keys of changes, as `k0`, `k1` and so on; a truncate has no key."""
    return f"select distinct {_each(side + '.{name} as k{i}', key)} from {log} where {side} is not null or op = 't'"


def sql_of(config: Config, entry: PublishedConfig, change_log: Schema | None = None) -> str:
    """The SQL of a published table; that of a history is made of the key and the columns of its change log.

    Raises:
        ConfigError: the key is unknown, or no mirror has this name.
    """
    if entry.history is None:
        return entry.sql
    settings = config.table(entry.history)
    key = entry.key or settings.key
    if not key:
        raise ConfigError(f"history: {entry.history} needs the columns that identify a row: key: [...]")
    log, place = change_log_name(entry.history), "ordinal"
    row: Any = change_log and change_log.find("after").type
    columns = [field.name for field in row.fields] if row else ()
    if settings.order_by != POSITION and (change_log is None or ORDER in change_log.names):  # logged since it has one
        log, place = _EACH_ONCE.format(log=log), "struct(coalesce(source_order, ''), ordinal)"
    return _HISTORY.format(
        logged=_LOGGED.format(place=place, log=log),
        new=_each("after.{name} as k{i}", key),
        old=_each("key.{name}", key),
        same=_each("key.{name} <=> after.{name}", key, " and "),
        names=_each("k{i}", key),
        sent=_each(_SENT, columns, ""),
        values=_each("s{i}.value as {name}", columns),
        unknown=_each("if(coalesce(s{i}.is_known, false), null, {text})", columns),
        at="ingested_at" if entry.valid_by == "ingest" else "coalesce(source_ts, ingested_at)",
        deleted=" or op_before <> 'd'" if settings.soft_delete else "",
    )


def published_query(config: Config, name: str, change_log: Schema | None = None) -> PublishedQuery:
    """The checked query of a published table; that of a history runs if the schema of its change log is given.

    Raises:
        ConfigError: an unknown name, or SQL that cannot run.
    """
    entry = published_entry(config, name)
    column = None if entry.partitioning is None else entry.partitioning.column
    query = parse_query(
        name,
        sql_of(config, entry, change_log),
        column,
        config.tables,
        entry.parameters,
        published=config.published,
        case_sensitive=config.spark.compares_case,
    )
    _check_names(query)
    if entry.history is None:
        return query
    return replace(query, history_key=entry.key or config.table(entry.history).key)


def arguments(query: PublishedQuery, entry: PublishedConfig, key: str | None) -> dict[str, Any]:
    """Parameter values that Spark binds to the query for one partition."""
    given: dict[str, Any] = dict(entry.parameters)
    if key is not None and entry.partitioning is not None and query.depends_on_partition:
        given |= entry.partitioning.parameters(key)
    return {name: value for name, value in given.items() if name in query.parameters}


def published_entry(config: Config, name: str) -> PublishedConfig:
    """The config of a published table.

    Raises:
        ConfigError: no such entry; names the nearest.
    """
    if (entry := config.published.get(name)) is not None:
        is_by_key = entry.history is not None and entry.partition is None and entry.mode == "replace"
        return entry.model_copy(update={"incremental": "keys"}) if is_by_key else entry
    raise ConfigError(
        f"no published table {name!r}; {did_you_mean(name, config.published, 'the config publishes nothing', cutoff=0.0)}"
    )


def requested_partitions(config: Config, name: str, partitions: Sequence[str], *, is_full: bool) -> list[str]:
    """Keys of the partitions that `publish` was asked for; empty if it was asked for none in particular.

    Raises:
        ConfigError: no such entry or partition, or a request that makes no sense.
    """
    entry = published_entry(config, name)
    if isinstance(partitions, str):
        raise ConfigError(f"partitions must be a sequence, not a single text: [{partitions!r}]")
    if is_full and entry.mode == "append":
        raise ConfigError(f"published {name} has mode: append, so --full would add existing rows again: leave it out")
    if partitions and entry.partitioning is None:
        raise ConfigError(f"published {name} has no partitions: leave out --partition")
    if partitions and is_full:
        raise ConfigError("--full makes all partitions; leave out --partition")
    keys = [key for text in partitions for key in (entry.partitioning.keys(text) if entry.partitioning else ())]
    if reason := next(iter(out_of_range(config, name, keys).values()), None):
        raise ConfigError(reason)
    return keys


def out_of_range(config: Config, name: str, keys: Sequence[str]) -> dict[str, str]:
    """Given partitions that a table cannot have, with the reason: not among its `values`, or outside of its time range.

    The range begins at `start`. It ends now for SQL that uses its partition, and never for rows that have their own
    dates.
    """
    entry = published_entry(config, name)
    partition = entry.partitioning
    asked = [key for key in keys if key != NULL_KEY]
    if partition is None:
        return {}
    if not partition.is_time:
        strange = [key for key in asked if entry.values and key not in entry.values]
        hints = {key: did_you_mean(key, entry.values, f"there are {', '.join(entry.values)}") for key in strange}
        return {key: f"published {name}: no partition {key!r} among its values; {hints[key]}" for key in strange}
    found: dict[str, str] = {}
    first = None if entry.start is None else partition.period(entry.start).start
    last = datetime.now(UTC) if published_query(config, name).depends_on_partition else None
    for key in asked:
        start = partition.period(key).start
        if first is not None and start < first:
            found[key] = (
                f"published {name}: partition {key} is before start: {entry.start}; begin there, or change start"
            )
        elif last is not None and start > last:
            found[key] = f"published {name}: partition {key} is in the future, and the SQL uses its partition"
    return found


def left_out_without_asking(config: Config) -> dict[str, str]:
    """Tables that a run without names leaves out, with the reason."""
    text = "mode: {} adds rows to a partition only on request: nevermore publish {} --partition ..."
    left_out = config.published.keys() - made_without_asking(config)
    return {name: text.format(entry.mode, name) for name, entry in config.published.items() if name in left_out}


def made_without_asking(config: Config) -> list[str]:
    """Tables that a run without names makes: those whose full result is the content of the table.

    Rows are added to a partition only when that partition is asked for.
    """
    return [n for n, entry in config.published.items() if entry.mode == "replace" or entry.partition is None]


def copied_columns(
    query: PublishedQuery, columns: Sequence[str], result: Sequence[str], day: str | None = None
) -> list[str | None] | None:
    """Find the column of the mirror behind each column of the result, None for the day; or None for any other query.

    Applies to queries that only select columns of one mirror; Spark names the columns of their result. `day` is the
    column of the result that is known to hold a single day in all rows, however it is computed.
    """
    select = query.tree
    if not isinstance(select, exp.Select) or any(value for name, value in select.args.items() if name not in _SIMPLE):
        return None
    table = _only_table(select)
    if table is None or len(query.tables) != 1:
        return None
    by_lower = {name.lower(): name for name in columns}
    if len(by_lower) != len(columns):
        return None
    day = (day or "").lower()
    found: list[tuple[str, str | None]] = []
    for expression in select.expressions:
        inner = expression.unalias()
        if isinstance(inner, exp.Star) and not any(inner.args.values()):
            found += [(name, name) for name in columns]
        elif day and expression.alias_or_name.lower() == day:
            found.append((expression.alias_or_name, None))
        elif _is_column_of(inner, table) and inner.name.lower() in by_lower:
            found.append((expression.alias_or_name, by_lower[inner.name.lower()]))
        else:
            return None
    if [name.lower() for name, _ in found] != [name.lower() for name in result]:
        return None
    return [None if name.lower() == day else column for name, column in found]


def _only_table(select: exp.Select) -> exp.Table | None:
    """Table that the query selects from, if it is a table without modifiers."""
    source: Any = select.args.get("from_")
    if select.args.get("kind") or select.args.get("hint") or source is None or not isinstance(source.this, exp.Table):
        return None
    table = source.this
    is_renamed = table.args.get("alias") is not None and table.args["alias"].columns
    return None if is_renamed or any(table.args.get(name) for name in _READ_OTHERWISE) else table


def _is_column_of(expression: exp.Expression, table: exp.Table) -> bool:
    """Whether this is a column, bare or qualified by its table: `a.b` may also be a member of a struct `a`."""
    if not isinstance(expression, exp.Column) or not isinstance(expression.this, exp.Identifier):
        return False
    qualifier = [part.name.lower() for part in expression.parts[:-1]]
    known = (
        [[table.alias.lower()]]
        if table.alias
        else [[part.name.lower() for part in table.parts[-n:]] for n in (1, len(table.parts))]
    )
    return not qualifier or qualifier in known
