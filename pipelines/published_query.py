"""The SQL of a published table: which mirrors it names, what it needs of them, and how to run it over views.

Reading less is an optimisation, never a change of meaning: wherever the query is not of a shape whose meaning is certain
here, everything is read and Spark filters alone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from difflib import get_close_matches

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import traverse_scope

from pipelines.errors import ConfigError
from scan_core.schema import PrimitiveType, Schema

DIALECT = "spark"
_DAY_FUNCTIONS = (exp.Cast, exp.TsOrDsToDate)
"""What cast(t as date), date(t) and to_date(t) are parsed to."""


@dataclass(frozen=True, slots=True)
class PublishedQuery:
    """A checked query.

    Attributes:
        name: of the published table, for messages.
        sql: the query as written.
        partition: column of the result by which it is partitioned.
        tree: the query parsed.
        tables: names of the tables it reads, sorted.
    """

    name: str
    sql: str
    partition: str
    tree: exp.Query
    tables: tuple[str, ...]

    def over_views(self, views: Mapping[str, str]) -> str:
        """The query with every table replaced by its view, named in `views`; nothing else of the text changes."""
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
        """The columns that the query can need, by table; all of a table's columns where that is in doubt."""
        everything = {table: schemas[table].names for table in self.tables}
        views = {table: f"t{number}" for number, table in enumerate(self.tables)}
        shapes = {view: {name.lower(): "UNKNOWN" for name in schemas[table].names} for table, view in views.items()}
        try:
            tree = qualify(
                sqlglot.parse_one(self.over_views(views), dialect=DIALECT),
                schema=shapes,
                dialect=DIALECT,
                quote_identifiers=False,
            )
            scopes = traverse_scope(tree)
        except SqlglotError:
            return everything
        needed: dict[str, set[str]] = {view: set() for view in views.values()}
        for scope in scopes:
            for alias, source in scope.sources.items():
                if isinstance(source, exp.Table) and source.name in needed:
                    needed[source.name] |= {column.name for column in scope.source_columns(alias)}
        return {table: _named(schemas[table], needed[views[table]]) for table in self.tables}

    def day_predicate(self, day: date, schemas: Mapping[str, Schema]) -> tuple[str, str] | None:
        """(table, condition) that every row of that table must fulfil to matter for this business day.

        None unless the result's partition column is, in one plain SELECT, a date column of the first table or the day of
        a time column of it: filtering such a table before joins to its right and before grouping by that very
        expression gives the same rows.
        """
        select = self.tree
        if not isinstance(select, exp.Select) or _reorders_rows(select):
            return None
        source = select.args.get("from_") or select.args.get("from")
        if source is None or not isinstance(source.this, exp.Table) or source.this.args.get("sample"):
            return None
        table = source.this
        name = _full_name(table)
        expression = next((e for e in select.expressions if e.alias_or_name.lower() == self.partition.lower()), None)
        if expression is None or name not in self.tables or not _groups_by(select, expression):
            return None
        column = _column_under(expression.unalias())
        if column is None or (column.table.lower() or table.alias_or_name.lower()) != table.alias_or_name.lower():
            return None
        if not column.table and len(self.tables) + len(list(select.find_all(exp.Join))) > 1:
            return None
        return _condition(
            name, schemas[name], column.name, day, is_day_of=not isinstance(expression.unalias(), exp.Column)
        )


def parse_query(name: str, sql: str, partition: str, tables: Collection[str]) -> PublishedQuery:
    """The query of the published table `name`, checked against the tables of the config.

    Raises:
        ConfigError: not one SELECT, a syntax error, or a table that the config does not know.
    """
    try:
        trees = [tree for tree in sqlglot.parse(sql, dialect=DIALECT) if tree is not None]
    except SqlglotError as error:
        raise ConfigError(f"published {name}: {error}") from error
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise ConfigError(f"published {name}: sql must be one query (select ...)")
    found = set()
    for table in _table_nodes(trees[0]):
        if _full_name(table) not in tables:
            near = get_close_matches(_full_name(table), sorted(tables), n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"the config has {', '.join(sorted(tables))}"
            raise ConfigError(f"published {name}: no table {_full_name(table)}; {hint}")
        found.add(_full_name(table))
    return PublishedQuery(name, sql, partition, trees[0], tuple(sorted(found)))


def _table_nodes(tree: exp.Expression) -> list[exp.Table]:
    """Tables, without references to common table expressions."""
    local = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    return [t for t in tree.find_all(exp.Table) if t.text("db") or t.name.lower() not in local]


def _full_name(table: exp.Table) -> str:
    return ".".join(part.name for part in table.parts)


def _span(parts: Sequence[exp.Expression]) -> tuple[int, int]:
    """Where the text of these identifiers starts and ends."""
    return parts[0].meta["start"], parts[-1].meta["end"] + 1


def _named(schema: Schema, wanted: set[str]) -> tuple[str, ...]:
    """Columns of the schema by lower-case name; one at least, for a scan without columns has no rows to count."""
    names = tuple(name for name in schema.names if name.lower() in wanted)
    return names or schema.names[:1]


def _reorders_rows(select: exp.Select) -> bool:
    """Whether filtering first could change which rows there are: limits, windows, sub-queries, other joins."""
    if select.args.get("limit") or select.args.get("offset") or select.args.get("with_") or select.args.get("with"):
        return True
    if select.find(exp.Window) or any(isinstance(e, exp.Query) and e is not select for e in select.walk()):
        return True
    return any(
        join.side.upper() not in ("", "LEFT") or join.kind.upper() not in ("", "INNER", "OUTER", "CROSS")
        for join in select.find_all(exp.Join)
    )


def _groups_by(select: exp.Select, expression: exp.Expression) -> bool:
    """Whether the query does not group, or groups by `expression` (as such, by alias, or by its number)."""
    group = select.args.get("group")
    if group is None:
        return not select.find(exp.AggFunc)
    if any(group.args.get(part) for part in ("rollup", "cube", "grouping_sets", "totals", "all")):
        return False
    number = str(select.expressions.index(expression) + 1)
    for key in group.expressions:
        if key == expression.unalias() or (isinstance(key, exp.Literal) and key.name == number):
            return True
        if isinstance(key, exp.Column) and not key.table and key.name.lower() == expression.alias_or_name.lower():
            return True
    return False


def _column_under(expression: exp.Expression) -> exp.Column | None:
    """The column of `column` or of the day of `column`."""
    if isinstance(expression, _DAY_FUNCTIONS):
        if expression.args.get("format") or (isinstance(expression, exp.Cast) and not expression.is_type("date")):
            return None
        expression = expression.this
    return expression if isinstance(expression, exp.Column) else None


def _condition(table: str, schema: Schema, name: str, day: date, *, is_day_of: bool) -> tuple[str, str] | None:
    field = next((f for f in schema.fields if f.name.lower() == name.lower()), None)
    if field is None or not isinstance(field.type, PrimitiveType):
        return None
    column = exp.to_identifier(field.name, quoted=True).sql(dialect=DIALECT)
    match field.type.name:
        case "date":
            return table, f"{column} = date '{day}'"
        case "timestamp" if is_day_of:
            return (
                table,
                f"{column} >= timestamp '{day} 00:00:00' and {column} < timestamp '{day + timedelta(days=1)} 00:00:00'",
            )
        case "timestamptz" if is_day_of:
            return (
                table,
                f"{column} >= timestamp '{day} 00:00:00+00:00' and {column} < timestamp '{day + timedelta(days=1)} 00:00:00+00:00'",
            )
        case _:
            return None
