"""The SQL of published tables: the mirrors that it names, what it needs of them, and how to run it.

Nothing here requires Spark or reads a table.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import traverse_scope

from pipelines.config.project import Config, PublishedConfig
from pipelines.config.publish_partition import NULL_KEY, PublishedPartition
from pipelines.errors import ConfigError
from pipelines.publish.lineage.partition_lineage import Reach, ScanCondition, reaches, scan_condition
from pipelines.publish.lineage.query_shape import PARTITION, PARTITION_END, PARTITION_START
from pipelines.publish.lineage.query_tree import DIALECT, qualified, takes_all_columns, traceable
from pipelines.publish.lineage.sql_functions import unrepeatable
from scan_core import ListType, MapType, NestedField, PredicateError, Schema, require_bounded

PARTITION_PARAMETERS = (PARTITION, PARTITION_START, PARTITION_END)
"""Parameters of every partitioned table."""


@dataclass(frozen=True, slots=True)
class PublishedQuery:
    """A checked query.

    Attributes:
        name: name of the published table, for messages.
        sql: the query as written.
        partition: column of the result by which it is partitioned; None for none.
        tree: the parsed query.
        tables: names of the tables it reads, sorted.
        texts: values of its parameters that are text.
    """

    name: str
    sql: str
    partition: str | None
    tree: exp.Query
    tables: tuple[str, ...]
    texts: tuple[str, ...] = ()

    def over_views(self, views: Mapping[str, str]) -> str:
        """Replace every table by its view, named in `views`; the rest of the text does not change."""
        edits: list[tuple[int, int, str]] = []
        for table in _table_nodes(self.tree):
            alias = "" if table.alias else f" AS {exp.to_identifier(table.name, quoted=True).sql(dialect=DIALECT)}"
            edits.append((*_span(table.parts), views[_full_name(table)] + alias))
        for column in self.tree.find_all(exp.Column):
            qualifier = [part for part in column.parts if part is not column.this]
            if ".".join(part.name for part in qualifier) in self.tables:
                edits.append((*_span(qualifier), qualifier[-1].sql(dialect=DIALECT)))
        text = self.sql
        for start, end, replacement in sorted(edits, reverse=True):
            text = text[:start] + replacement + text[end:]
        return text

    def columns(self, schemas: Mapping[str, Schema]) -> dict[str, tuple[str, ...]]:
        """The columns that the query can need, by table; all of a table's columns where that is in doubt.

        Raises:
            ConfigError: the names of two of them differ only in case.
        """
        tree = self.in_full(schemas)
        # columns in `* except (a)` must exist
        if tree is None or takes_all_columns(tree) or any(s.args.get("except_") for s in self.tree.find_all(exp.Star)):
            return self._apart(schemas, {table: schemas[table].names for table in self.tables})
        views = self.view_names
        needed: dict[str, set[str]] = {view: set() for view in views.values()}
        for scope in traverse_scope(tree):
            for alias, source in scope.sources.items():
                if isinstance(source, exp.Table) and source.name in needed:
                    needed[source.name] |= {column.name for column in scope.source_columns(alias)}
        found = {}
        for table in self.tables:
            names = tuple(name for name in schemas[table].names if name.lower() in needed[views[table]])
            found[table] = names or schemas[table].names[:1]  # a scan without columns has no rows to count
        return self._apart(schemas, found)

    def _apart(self, schemas: Mapping[str, Schema], columns: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for table, names in columns.items():
            used = [f for f in schemas[table].fields if f.name in names]
            require_names_apart(self.name, table, paths_of(used))
        return columns

    @property
    def view_names(self) -> dict[str, str]:
        """A one-part name for each table, which `reaches` uses."""
        return {table: f"nevermore_t{number}" for number, table in enumerate(self.tables)}

    @property
    def parameters(self) -> frozenset[str]:
        """Names of the parameters in the text."""
        return frozenset(node.name for node in self.tree.find_all(exp.Placeholder))

    @property
    def depends_on_partition(self) -> bool:
        """Whether the text uses the partition's parameters, so that each partition has a query of its own."""
        return not self.parameters.isdisjoint(PARTITION_PARAMETERS)

    def reaches(self, schemas: Mapping[str, Schema], partition: PublishedPartition) -> tuple[Reach, ...]:
        """How changed rows of each table reach partitions of the result; tables are named as in `view_names`."""
        # another run could give other rows for the same input, so any change could affect any partition
        if (reason := self.why_unrepeatable(schemas)) is not None:
            return self._unknown(reason)
        return self._slices(schemas, partition)

    def _slices(self, schemas: Mapping[str, Schema], partition: PublishedPartition) -> tuple[Reach, ...]:
        """How changed rows reach partitions within one run, even if functions return something else in another run."""
        tree = self.in_full(schemas)
        flat = "names in the SQL cannot be told apart with certainty" if tree is None else traceable(tree)
        if isinstance(flat, str):
            return self._unknown(flat)
        kind = "TIMESTAMP" if partition.unit == "hour" else "DATE"
        if partition.unit == "value":
            kinds = [e.type for e in flat.selects if e.alias_or_name.lower() == partition.column.lower()]
            kind = kinds[0].this.name if kinds and kinds[0] is not None else "UNKNOWN"
        return reaches(flat, partition.column.lower(), kind)

    def _unknown(self, reason: str) -> tuple[Reach, ...]:
        return tuple(Reach(view, None, reason=reason) for view in self.view_names.values())

    def why_unrepeatable(self, schemas: Mapping[str, Schema]) -> str | None:
        """Why the same rows may give another result in another run; None if they cannot."""
        tree = self.in_full(schemas)
        found = unrepeatable(self.tree if tree is None else tree, self.texts)
        return None if found is None else f"{found} gives no certain answer for the same rows"

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
                scan_condition(reach.expression, schemas[table], partition, values)
                if reach.expression is not None and reach.final
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

    def in_full(self, schemas: Mapping[str, Schema]) -> exp.Query | None:
        """The tree with qualified columns and known types, over tables named as in `view_names`; None if in doubt."""
        views = self.view_names
        return qualified(self.over_views(views), {views[table]: schemas[table] for table in self.tables})


def parse_query(
    name: str,
    sql: str,
    partition: str | None,
    tables: Collection[str],
    parameters: Mapping[str, Any] | None = None,
    *,
    published: Collection[str] = (),
) -> PublishedQuery:
    """Parse the query of the published table `name` and check it against the tables of the config.

    `published` are tables that SQL cannot read, because they are published themselves.

    Raises:
        ConfigError: not a single SELECT, a syntax error, or a table or parameter that the config does not have.
    """
    try:
        require_bounded(sqlglot.tokenize(sql, dialect=DIALECT))
        trees = [tree for tree in sqlglot.parse(sql, dialect=DIALECT) if tree is not None]
    except SqlglotError as error:
        template = "; a parameter is written :partition, not {{ partition }}" if "{{" in sql else ""
        raise ConfigError(f"published {name}: {_in_words(error)}{template}") from error
    except PredicateError as error:
        raise ConfigError(f"published {name}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"published {name}: the SQL nests too deeply") from error
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise ConfigError(f"published {name}: sql must be one query (select ...)")
    found = set()
    for table in _table_nodes(trees[0]):
        if _full_name(table) not in tables:
            hint = did_you_mean(_full_name(table), tables, f"the config has {', '.join(sorted(tables))}")
            if _full_name(table) in published:
                hint = f"it is published itself, and SQL reads mirrors: {', '.join(sorted(tables))}"
            raise ConfigError(f"published {name}: no table {_full_name(table)}; {hint}")
        found.add(_full_name(table))
    given = parameters or {}
    texts = tuple(value for value in given.values() if isinstance(value, str))
    query = PublishedQuery(name, sql, partition, trees[0], tuple(sorted(found)), texts)
    _check_parameters(query, given)
    return query


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
    near = get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
    return f"did you mean {shown.format(near[0])}?" if near else otherwise


def _in_words(error: Exception) -> str:
    """The message without the codes that underline on a terminal, and with tokens as their text."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return re.sub(r"<Token token_type: \S+, text: (.*?), line: \d+,[^>]*>", r"'\1'", plain)


def _table_nodes(tree: exp.Expression) -> list[exp.Table]:
    """Table nodes other than references to common table expressions."""
    local = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    return [t for t in tree.find_all(exp.Table) if t.text("db") or t.name.lower() not in local]


def _full_name(table: exp.Table) -> str:
    return ".".join(part.name for part in table.parts)


def _span(parts: Sequence[exp.Expression]) -> tuple[int, int]:
    return parts[0].meta["start"], parts[-1].meta["end"] + 1


def require_names_apart(name: str, of: str, paths: Iterable[str]) -> None:
    """Refuse two columns, or members of one column such as `at.city`, whose names Spark does not distinguish.

    Raises:
        ConfigError: there are two such names.
    """
    seen: dict[tuple[str, str], str] = {}
    for path in paths:
        others = [seen.setdefault(key, path) for key in _without_case(path)]
        other = next((other for other in others if other != path), path)
        if other != path:
            raise ConfigError(
                f"published {name}: {of} has {other!r} and {path!r}, which differ only in case, and Spark does not "
                "distinguish them: use neither in the SQL (name the columns instead of *), or rename one where it comes from"
            )


def _without_case(name: str) -> tuple[tuple[str, str], ...]:
    """Fold a name as Spark compares it: columns in lower case, members letter by letter.

    Letter by letter is Java's `equalsIgnoreCase`: each letter's single upper-case letter, and the single lower-case
    letter of that. So both small sigmas are equal, `ẞ` equals `ß` and `İ` equals `i`, but `ß` does not equal `ss`.
    """
    upper = (letter.upper() if len(letter.upper()) == 1 else letter for letter in name)
    return ("lower case", name.lower()), ("letters", "".join(letter.lower()[0] for letter in upper))


def paths_of(fields: Iterable[NestedField]) -> Iterator[str]:
    """Paths of columns and of all members of structs within them, parents first."""
    schema = Schema(0, tuple(fields))
    for path in map(schema.path, schema.field_ids):
        holders = (None, *(above.type for above in path))
        named = [f.name for f, holder in zip(path, holders, strict=False) if not isinstance(holder, ListType | MapType)]
        if not isinstance(holders[-2], ListType | MapType):
            yield ".".join(named)


def tables_read(config: Config, name: str) -> tuple[str, ...]:
    """Mirrors that the SQL of a published table names.

    Raises:
        ConfigError: an unknown name, or SQL that cannot run.
    """
    return published_query(config, name).tables


def published_query(config: Config, name: str) -> PublishedQuery:
    """The checked query of a published table.

    Raises:
        ConfigError: an unknown name, or SQL that cannot run.
    """
    entry = published_entry(config, name)
    column = None if entry.partitioning is None else entry.partitioning.column
    return parse_query(name, entry.sql, column, config.tables, entry.parameters, published=config.published)


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
    if name in config.published:
        return config.published[name]
    hint = did_you_mean(name, config.published, "the config publishes nothing", cutoff=0.0)
    raise ConfigError(f"no published table {name!r}; {hint}")


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
