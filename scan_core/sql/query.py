"""A query as it was written: the tables that it names, the columns that it needs of them, and its text over views.

Also its syntax tree with qualified columns, known types and inlined CTEs, on which the other modules of this folder work.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, traverse_scope
from sqlglot.schema import MappingSchema
from sqlglot.tokens import TokenType

from nevermore.scan_core.expr.parse import require_bounded
from nevermore.scan_core.model.errors import OptionError, PredicateError
from nevermore.scan_core.model.schema import ListType, MapType, NestedField, PrimitiveType, Schema, Type
from nevermore.scan_core.sql.sql_functions import join_kind, unrepeatable, why_not_understood

DIALECT = "spark"
RESERVED = frozenset({"_keys", "_out"})
"""Names that queries built here give to their sources."""
_UNNAMED = "_nevermore_unnamed_"
_STAR = "_nevermore_star_"
"""Stands for a column called `*`: sqlglot takes a table that has one for a table with unknown columns."""
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYWORDS = frozenset(sqlglot.Dialect.get_or_raise(DIALECT).tokenizer_class.KEYWORDS)
_TYPES = {
    "long": "bigint",
    "timestamptz": "timestamp",
    "timestamp": "timestamp_ntz",
    "timestamptz_ns": "timestamp",
    "timestamp_ns": "timestamp_ntz",
    "uuid": "string",
    "fixed": "binary",
}
"""Iceberg's type names that differ from Spark's."""


@dataclass(frozen=True, slots=True)
class SqlQuery:
    """A parsed query.

    Attributes:
        sql: the query as written.
        tree: the parsed query.
        tables: names of the tables it reads, sorted: known ones as they are known, whatever their letter case in the text.
        texts: values of its parameters that are text.
        case_sensitive: whether names that differ in case are different names, as `spark.sql.caseSensitive` makes them.
    """

    sql: str
    tree: exp.Query
    tables: tuple[str, ...]
    texts: tuple[str, ...] = ()
    case_sensitive: bool = False

    def over_views(self, views: Mapping[str, str]) -> str:
        """Replace every table that has a view, named in `views`; the rest of the text does not change."""
        edits: list[tuple[int, int, str]] = []
        for table in _table_nodes(self.tree):
            if (view := views.get(self._named(table.parts))) is not None:
                alias = "" if table.alias else f" AS {exp.to_identifier(table.name, quoted=True).sql(dialect=DIALECT)}"
                edits.append((*_span(table.parts), view + alias))
        for column in self.tree.find_all(exp.Column):
            qualifier = [part for part in column.parts if part is not column.this]
            if self._named(qualifier) in views:
                edits.append((*_span(qualifier), qualifier[-1].sql(dialect=DIALECT)))
        text = self.sql
        for start, end, replacement in sorted(edits, reverse=True):
            text = text[:start] + replacement + text[end:]
        return text

    def spelled(self, table: str) -> str:
        """The name of a table as SQL, quoted."""
        node = next(node for node in _table_nodes(self.tree) if self._named(node.parts) == table)
        return ".".join(exp.to_identifier(part.name, quoted=True).sql(dialect=DIALECT) for part in node.parts)

    def _named(self, parts: Sequence[exp.Expression]) -> str:
        """The table that the text names by these parts, as in `tables`; the name as written if it is none of them."""
        name = _joined(parts)
        return find_name(name, self.tables, case_sensitive=self.case_sensitive) or name

    def columns(self, schemas: Mapping[str, Schema]) -> dict[str, tuple[str, ...]]:
        """The columns that the query can need, by table; all of a table's columns where that is in doubt.

        Raises:
            OptionError: the names of two of them differ only in case.
        """
        tree = self._shared_tree(schemas)
        # columns in `* except (a)` must exist
        if tree is None or takes_all_columns(tree) or any(s.args.get("except_") for s in self.tree.find_all(exp.Star)):
            return self._apart(schemas, {table: schemas[table].names for table in self.tables})
        views = self.view_names
        needed: dict[str, set[str]] = {view: set() for view in views.values()}
        for view, used in _used_columns(tree, may_shrink=_may_shrink_stars(self.tree, tree)):
            if view in needed:
                needed[view] |= used
        found = {}
        for table in self.tables:
            names = tuple(name for name in schemas[table].names if name.lower() in needed[views[table]])
            found[table] = names or schemas[table].names[:1]  # a scan without columns has no rows to count
        return self._apart(schemas, found)

    def _apart(self, schemas: Mapping[str, Schema], columns: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for table, names in columns.items():
            used = [f for f in schemas[table].fields if f.name in names]
            require_names_apart(table, paths_of(used))
        return columns

    @property
    def view_names(self) -> dict[str, str]:
        """A one-part name for each table, which `reaches` uses."""
        return {table: f"nevermore_t{number}" for number, table in enumerate(self.tables)}

    @property
    def parameters(self) -> frozenset[str]:
        """Names of the parameters in the text."""
        return frozenset(node.name for node in self.tree.find_all(exp.Placeholder))

    def why_unrepeatable(self, schemas: Mapping[str, Schema]) -> str | None:
        """Why the same rows may give another result in another run; None if they cannot."""
        tree = self._shared_tree(schemas)
        found = unrepeatable(self.tree if tree is None else tree, self.texts)
        return None if found is None else f"{found} gives no certain answer for the same rows"

    def in_full(self, schemas: Mapping[str, Schema]) -> exp.Query | None:
        """The tree with qualified columns and known types, over tables named as in `view_names`; None if in doubt."""
        tree = self._shared_tree(schemas)
        return None if tree is None else tree.copy()

    def traceable(self, schemas: Mapping[str, Schema]) -> exp.Query | str:
        """The tree of `in_full`, prepared for tracing, or the reason why it cannot be traced."""
        if self.case_sensitive:
            return "spark.sql.caseSensitive is set, and names in the SQL are understood without case only"
        flat = _traceable(*self._over_schemas(schemas))
        return flat if isinstance(flat, str) else flat.copy()

    def _shared_tree(self, schemas: Mapping[str, Schema]) -> exp.Query | None:
        """The tree of `in_full`, for those who only look at it."""
        # names are qualified as Spark does by default
        return None if self.case_sensitive else _qualified(*self._over_schemas(schemas))

    def _over_schemas(self, schemas: Mapping[str, Schema]) -> tuple[str, tuple[tuple[str, Schema], ...]]:
        """The text over `view_names`, and the schemas of these."""
        views = self.view_names
        return self.over_views(views), tuple((views[table], schemas[table]) for table in self.tables)


_KEPT_TREES = 16
"""Trees that are kept: a run asks for that of its query about ten times, and each takes as long as a small scan."""


@lru_cache(_KEPT_TREES)
def _qualified(sql: str, schemas: tuple[tuple[str, Schema], ...]) -> exp.Query | None:
    return qualified(sql, dict(schemas))


@lru_cache(_KEPT_TREES)
def _traceable(sql: str, schemas: tuple[tuple[str, Schema], ...]) -> exp.Query | str:
    tree = _qualified(sql, schemas)
    return "names in the SQL cannot be told apart with certainty" if tree is None else traceable(tree)


def parse_sql(
    sql: str, texts: Sequence[str] = (), known: Collection[str] = (), *, case_sensitive: bool = False
) -> SqlQuery:
    """Parse one query; text parameters have the values `texts`, and `known` tables may be written in any case.

    Raises:
        OptionError: a syntax error, not a single SELECT, or a table's name that means several known ones.
    """
    try:
        require_bounded(sqlglot.tokenize(sql, dialect=DIALECT))
        trees = [tree for tree in sqlglot.parse(sql, dialect=DIALECT) if tree is not None]
    except SqlglotError as error:
        raise OptionError(_in_words(error)) from error
    except PredicateError as error:
        raise OptionError(str(error)) from error
    except RecursionError as error:
        raise OptionError("the SQL nests too deeply") from error
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise OptionError("sql must be one query (select ...)")
    written = {_joined(table.parts) for table in _table_nodes(trees[0])}
    found = {find_name(name, known, case_sensitive=case_sensitive) or name for name in written}
    return SqlQuery(sql, trees[0], tuple(sorted(found)), tuple(texts), case_sensitive)


def quoted_name(name: str) -> str:
    """A column's name in the form that Spark's SQL and `col` accept, with any characters."""
    return "`" + name.replace("`", "``") + "`"


def find_name(name: str, known: Collection[str], *, case_sensitive: bool = False) -> str | None:
    """The table that a name means: that of exactly this name, else the only one that differs in case alone."""
    if name in known or case_sensitive:
        return name if name in known else None
    alike = sorted(other for other in known if other.lower() == name.lower())
    if len(alike) > 1:
        raise OptionError(
            f"{name} may mean {' or '.join(alike)}, which differ only in case: write the one that is meant exactly so"
        )
    return alike[0] if alike else None


def _in_words(error: Exception) -> str:
    """The message without the codes that underline on a terminal, without classes, and with tokens as their text."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    plain = re.sub(r"Required keyword: '\w+' missing for <class '[^']*'>", "something is missing here", plain)
    return re.sub(r"<Token token_type: \S+, text: (.*?), line: \d+,[^>]*>", r"'\1'", plain)


def _table_nodes(tree: exp.Expression) -> list[exp.Table]:
    """Table nodes other than references to common table expressions."""
    return [t for t in tree.find_all(exp.Table) if t.text("db") or t.name.lower() not in _common_names(t)]


def _common_names(table: exp.Table) -> Iterator[str]:
    """Names of the common table expressions that a table node can refer to, in lower case.

    One that does not refer to itself is seen by those after it and by its query alone: in its own text its name is that of a table.
    """
    node: exp.Expression = table
    while (above := node.parent) is not None:
        if isinstance(above, exp.With):
            own = next(number for number, cte in enumerate(above.expressions) if cte is node)
            seen = above.expressions if above.recursive else above.expressions[:own]
            yield from (cte.alias.lower() for cte in seen)
            above = above.parent  # whose own clause this is
        elif (clause := above.args.get("with_")) is not None:
            yield from (cte.alias.lower() for cte in clause.expressions)
        if above is None:
            return
        node = above


def _joined(parts: Sequence[exp.Expression]) -> str:
    return ".".join(part.name for part in parts)


def _span(parts: Sequence[exp.Expression]) -> tuple[int, int]:
    return parts[0].meta["start"], parts[-1].meta["end"] + 1


def require_names_apart(of: str, paths: Iterable[str]) -> None:
    """Refuse two columns, or members of one column such as `at.city`, whose names Spark does not distinguish.

    Raises:
        OptionError: there are two such names.
    """
    seen: dict[tuple[str, str], str] = {}
    for path in paths:
        others = [seen.setdefault(key, path) for key in _without_case(path)]
        other = next((other for other in others if other != path), path)
        if other != path:
            raise OptionError(
                f"{of} has {other!r} and {path!r}, which differ only in case, and Spark does not "
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


def qualified(sql: str, schemas: Mapping[str, Schema]) -> exp.Query | None:
    """Qualify every column with its source and expand every star; None where either is in doubt.

    Tables have names of one part, the keys of `schemas`.
    """
    shapes = {
        table: {_STAR if f.name == "*" else f.name.lower(): _sql_type(f.type) for f in schema.fields}
        for table, schema in schemas.items()
    }
    if _STAR in sql or any(f.name.lower() == _STAR for schema in schemas.values() for f in schema.fields):
        return None
    try:
        parsed = sqlglot.parse_one(sql, dialect=DIALECT)
        _rename(parsed, "*", _STAR)
        # where a name may mean another column than sqlglot finds, tracing would follow the wrong column
        if _renames_columns(parsed) or _has_doubtful_names(parsed, sql) or _may_hide_sources(parsed, schemas):
            return None
        _leave_out_stars(parsed)
        _name_expressions(parsed)
        known = MappingSchema(shapes, dialect=DIALECT, normalize=False)  # the names are no SQL to be parsed
        if _takes_aliases_for_columns(parsed, known):
            return None
        tree = qualify(parsed, schema=known, dialect=DIALECT, quote_identifiers=False)
        tree = annotate_types(tree, schema=known, dialect=DIALECT)
        if _has_captured_columns(tree, shapes) or _has_members_of_plain_columns(tree):
            return None
        _rename(tree, _STAR, "*")
        _quote_names(tree)
    except (SqlglotError, RecursionError, AssertionError):  # the last for `order by 1` beside a star in doubt
        return None
    return tree if isinstance(tree, exp.Query) else None


_OWN_ALIAS = "nevermore_own_alias"
"""Marks columns that have the name of an alias of their own SELECT."""


def _takes_aliases_for_columns(tree: exp.Expression, known: MappingSchema) -> bool:
    """Whether a name in WHERE is that of an alias of its own SELECT, and of no column there.

    sqlglot takes it for the alias. Spark does not: it is a column around the sub-query, as `cid` of `o` in
    `from o where exists (select n as cid from l where cid = 1)`.
    """
    if not _mark_own_aliases(tree):
        return False
    tree = qualify(
        tree.copy(), schema=known, dialect=DIALECT, quote_identifiers=False, expand_alias_refs=False,
        validate_qualify_columns=False,
    )  # fmt: skip
    for column in tree.find_all(exp.Column):
        if column.meta.get(_OWN_ALIAS):
            select = column.find_ancestor(exp.Select)
            own = select.find_all(exp.From, exp.Join, exp.Lateral) if select else ()
            nodes = (node if isinstance(node, exp.Lateral) else node.this for node in own if node.parent is select)
            if column.table not in {node.alias_or_name for node in nodes}:
                return True
    return False


def _mark_own_aliases(tree: exp.Expression) -> bool:
    """Mark the columns without a source in WHERE that have the name of an alias of their SELECT; False if there are none."""
    is_any = False
    for select in tree.find_all(exp.Select):
        where = select.args.get("where")
        aliases = {e.alias.lower() for e in select.expressions if isinstance(e, exp.Alias)}
        for column in where.find_all(exp.Column) if where and aliases else ():
            is_own = not column.table and column.name.lower() in aliases and column.find_ancestor(exp.Select) is select
            if is_own:
                column.meta[_OWN_ALIAS] = is_any = True
    return is_any


def _has_captured_columns(tree: exp.Expression, shapes: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether a column was resolved to an inner source of the same name, as `cid` of `o` in `from o where (select x from l o where cid = 1)`."""
    for scope in traverse_scope(tree):
        for column in scope.find_all(exp.Column):
            source = scope.sources.get(column.table)
            known = (
                source.expression.named_selects
                if isinstance(source, Scope)
                else shapes.get(source.name)
                if source
                else None
            )
            if known is not None and "*" not in known and column.name.lower() not in {name.lower() for name in known}:
                return True
    return False


def _rename(tree: exp.Expression, old: str, new: str) -> None:
    for identifier in tree.find_all(exp.Identifier):
        if identifier.name == old:
            identifier.set("this", new)


def _quote_names(tree: exp.Expression) -> None:
    """Quote the names that need it: the column names of an expanded star come from no text."""
    for identifier in tree.find_all(exp.Identifier):
        name = identifier.name
        if not _PLAIN_NAME.fullmatch(name) or name.upper() in _KEYWORDS:
            identifier.set("quoted", True)


def _renames_columns(tree: exp.Expression) -> bool:
    """Whether columns of tables are renamed in the text, so that a name may refer to another column."""
    aliases = (table.args.get("alias") for table in tree.find_all(exp.Table))
    computed = (node for node in tree.find_all(exp.Anonymous) if node.name.lower() == "identifier")
    return any(alias is not None and alias.columns for alias in aliases) or next(computed, None) is not None


def _has_doubtful_names(tree: exp.Expression, sql: str) -> bool:
    """Whether sqlglot resolves names differently from Spark, or loses the information to tell.

    Pipes become common table expressions, and NATURAL an alias. In a semi or anti join with USING the column is that of
    the left side, and `*` puts the columns of USING first.
    """
    quoted = {TokenType.IDENTIFIER, TokenType.STRING, TokenType.RAW_STRING}
    for token in sqlglot.tokenize(sql, dialect=DIALECT):
        is_natural = token.text.upper() == "NATURAL" and token.token_type not in quoted
        if is_natural or token.token_type is TokenType.PIPE_GT:
            return True
    joins = [join for join in tree.find_all(exp.Join) if join.args.get("using")]
    return bool(joins) and (_has_star(tree) or any(join_kind(join) in {None, "SEMI", "ANTI"} for join in joins))


def _has_members_of_plain_columns(tree: exp.Expression) -> bool:
    """Whether `a.b` was taken for a member of a column `a` that has none, as it is the column `b` of another source `a`.

    sqlglot does so with sources that it does not see where the column stands, as those of semi joins.
    """
    roots = (dot.this for dot in tree.find_all(exp.Dot) if isinstance(dot.this, exp.Column))
    return any(not root.is_type(*_WITH_MEMBERS) for root in roots)


_WITH_MEMBERS = (exp.DType.UNKNOWN, exp.DType.STRUCT, exp.DType.ARRAY, exp.DType.MAP, exp.DType.VARIANT)


def _may_hide_sources(tree: exp.Expression, schemas: Mapping[str, Schema]) -> bool:
    """Whether `a.b` in a sub-query or semi join may be a member of a column `a`, not a column of another source `a`."""
    is_half = any(join_kind(join) in {None, "SEMI", "ANTI"} for join in tree.find_all(exp.Join))
    is_inner = any(isinstance(query.parent, exp.Exists | exp.In | exp.Subquery) for query in tree.find_all(exp.Query))
    if not is_half and not is_inner:
        return False
    nested = {f.name.lower() for s in schemas.values() for f in s.fields if not isinstance(f.type, PrimitiveType)}
    columns = nested | {alias.alias.lower() for alias in tree.find_all(exp.Alias)}
    return any(source.alias_or_name.lower() in columns for source in tree.find_all(exp.Table, exp.Subquery))


def _leave_out_stars(tree: exp.Expression) -> None:
    """Select a constant in `exists (select * ...)`, which asks for rows alone: a star would need all columns."""
    for query in (found.this for found in tree.find_all(exp.Exists)):
        if not isinstance(query, exp.Select) or query.args.get("distinct"):  # fewer rows would be distinct
            continue
        selected = [e.this if isinstance(e, exp.Column) else e for e in query.expressions]
        if not _names_places(query) and all(isinstance(e, exp.Star) and not any(e.args.values()) for e in selected):
            query.set("expressions", [exp.Literal.number(1)])


def _name_expressions(tree: exp.Expression) -> None:
    """Name unnamed expressions: Spark makes a name from their text, which must not be taken for an inner column."""
    for select in tree.find_all(exp.Select):
        for number, expression in enumerate(select.expressions):
            inner = expression.unnest()
            if isinstance(inner, exp.Alias | exp.Aliases | exp.Column | exp.Dot | exp.Star) or inner.is_star:
                continue
            if isinstance(inner, exp.Explode | exp.Inline | exp.Stack):  # generators name their own columns
                continue
            expression.replace(exp.alias_(expression.copy(), f"{_UNNAMED}{number}"))


def takes_all_columns(tree: exp.Expression) -> bool:
    """Whether a qualified query uses columns that it does not name.

    That is a star that was not expanded, as in `struct(*)`, or a pivot, which groups by all other columns.
    """
    return _has_star(tree) or next(tree.find_all(exp.Pivot), None) is not None


def _has_star(tree: exp.Expression) -> bool:
    """Whether a star stands for columns, unlike that of `count(*)`; `count(*, 1)` counts rows without NULL."""
    parents = (star.parent for star in tree.find_all(exp.Star))
    return any(not isinstance(parent, exp.Count) or parent.expressions for parent in parents)


def _may_shrink_stars(written: exp.Query, tree: exp.Query) -> bool:
    """Whether `*` in an inner query may stand for only the columns that something uses.

    So it is where nothing depends on how many columns there are, on their places, or on which names both sides of a join have.

    Args:
        written: the query.
        tree: the same, qualified.
    """
    if any(query.find(exp.SetOperation, exp.Lateral, exp.Unnest) for query in (written, tree)):
        return False
    for select in tree.find_all(exp.Select):
        names = [name.lower() for name in select.named_selects]
        if len(set(names)) < len(names):
            return False
    named = (node for node in written.find_all(exp.TableAlias) if isinstance(node.parent, exp.CTE | exp.Subquery))
    if any(alias.columns for alias in named):
        return False
    return not any(query.is_star and _names_places(query) for query in written.find_all(exp.Query))


def _names_places(query: exp.Query) -> bool:
    """Whether rows may be grouped or ordered by the places of columns, or by all of them."""
    parts = [part for key in ("group", "order", "sort") if (part := query.args.get(key)) is not None]
    return any(part.args.get("all") or part.find(exp.Literal, exp.Placeholder, exp.Var) for part in parts)


def _used_columns(tree: exp.Query, *, may_shrink: bool) -> Iterator[tuple[str, set[str]]]:
    """Each table of a qualified query with the columns that a part of it uses.

    What the text names must exist, even if nothing uses it. With `may_shrink`, what `*` of an inner query stands for need not.
    """
    used: defaultdict[int, set[str]] = defaultdict(set)
    for scope in reversed(traverse_scope(tree)):  # each query before those that it selects from
        query = scope.expression
        is_inner = may_shrink and (scope.is_derived_table or scope.is_cte) and not query.args.get("distinct")
        for alias, source in scope.sources.items():
            names = {
                column.name
                for column in scope.source_columns(alias)
                if not is_inner or not _is_unused(column, query, used[id(query)])
            }
            if isinstance(source, exp.Table):
                yield source.name, names
            elif isinstance(source, Scope):
                used[id(source.expression)] |= names


def _is_unused(column: exp.Column, query: exp.Expression, used: Collection[str]) -> bool:
    """Whether a query selects a column as part of a star, which alone has no place in the text, and nobody uses it."""
    selected = column.parent
    is_of_star = "start" not in column.this.meta and isinstance(selected, exp.Alias) and selected.parent is query
    return is_of_star and selected.alias not in used


def traceable(tree: exp.Query) -> exp.Query | str:
    """Prepare a qualified query for tracing, or return the reason why it cannot be traced.

    CTEs are inlined, and every source gets a name of its own.
    """
    flat = inlined(tree)
    if flat is None:
        return "a common table expression that refers to itself, or names its columns, is not understood"
    if takes_all_columns(flat):
        return "columns that are not named are not understood"
    if (reason := why_not_understood(flat)) is not None:
        return reason
    return flat if _name_sources_apart(flat) else "the SQL has names that can mean several columns"


def _name_sources_apart(tree: exp.Query) -> bool:
    """Make source names unique across SELECTs; False where a column's source is not certain.

    A name refers to the nearest SELECT that has such a source. It is not looked up beyond a sub-query in FROM.
    """
    scopes = traverse_scope(tree)
    owners: list[tuple[exp.Column, exp.Expression]] = []
    for scope in scopes:
        if _sources_of(scope) is None:
            return False
        for column in scope.find_all(exp.Column):
            if not column.table and isinstance(
                column.find_ancestor(exp.Order, exp.Sort, exp.Query), exp.Order | exp.Sort
            ):
                continue  # a column of the result itself
            found = _owner_of(column, scope)
            if found is None:
                return False
            owners.append((column, found))
    names: dict[int, str] = {}
    taken = set(RESERVED)
    for scope in reversed(scopes):  # outermost first, so that those keep their names
        for name, node in (_sources_of(scope) or {}).items():
            free, number = name, 1
            while free in taken:
                number += 1
                free = f"{name}_{number}"
            taken.add(free)
            names[id(node)] = free
            columns = node.args["alias"].columns if isinstance(node, exp.Lateral) else None
            node.set("alias", exp.TableAlias(this=exp.to_identifier(free), columns=columns))
    for column, node in owners:
        column.set("table", exp.to_identifier(names[id(node)]))
    return True


def _sources_of(scope: Scope) -> dict[str, exp.Expression] | None:
    """Sources of a SELECT by name; None where two share a name."""
    select = scope.expression
    if not isinstance(select, exp.Select):
        return {}
    nodes = [part.this for part in (select.args.get("from_"), *(select.args.get("joins") or ())) if part]
    nodes += select.args.get("laterals") or ()
    found = {node.alias_or_name: node for node in nodes}
    return found if len(found) == len(nodes) and "" not in found else None


def _owner_of(column: exp.Column, scope: Scope) -> exp.Expression | None:
    """The source of a column: in its own SELECT or, for a sub-query in an expression, in a SELECT around it."""
    name, at = column.table, scope
    while name not in (sources := _sources_of(at) or {}):
        if not (at.is_subquery or at.is_udtf) or at.parent is None:
            return None
        at = at.parent
    return sources[name]


def inlined(tree: exp.Query) -> exp.Query | None:
    """Replace each reference to a common table expression by its query; None if one refers to itself."""
    # rows of a recursive one depend on rows of any earlier step; an alias with columns renames them
    if any(node.args.get("recursive") for node in tree.find_all(exp.With)) or any(
        cte.args["alias"].columns for cte in tree.find_all(exp.CTE)
    ):
        return None
    found = _inlined(tree.copy(), {})
    return found if isinstance(found, exp.Query) else None


def _inlined(node: exp.Expression, known: Mapping[str, exp.Expression]) -> exp.Expression:
    if isinstance(node, exp.Query) and (clause := node.args.get("with_")) is not None:
        known = dict(known)
        for cte in clause.expressions:
            known[cte.alias.lower()] = _inlined(cte.this, known)
        node.set("with_", None)
    if isinstance(node, exp.Table) and not node.text("db") and node.name.lower() in known:
        alias = exp.TableAlias(this=exp.to_identifier(node.alias_or_name))
        return exp.Subquery(this=known[node.name.lower()].copy(), alias=alias)
    for name, value in list(node.args.items()):
        if isinstance(value, exp.Expression):
            node.set(name, _inlined(value, known))
        elif isinstance(value, list):
            node.set(name, [_inlined(v, known) if isinstance(v, exp.Expression) else v for v in value])
    return node


def _sql_type(kind: Type) -> str:
    if not isinstance(kind, PrimitiveType):
        return "UNKNOWN"
    return _TYPES.get(kind.name, str(kind).replace(" ", ""))


def sql_literal(value: Any) -> exp.Expression | None:
    """Write a parameter's value as a literal that Spark reads alike; None for a value without one."""
    match value:
        case bool():
            return exp.Boolean(this=value)
        case int() | Decimal():
            return exp.Literal.number(value)
        case str():
            return exp.Literal.string(value)
        case datetime():
            return exp.cast(exp.Literal.string(value.isoformat(sep=" ")), "timestamp")
        case date():
            return exp.cast(exp.Literal.string(value.isoformat()), "date")
        case _:
            return None
