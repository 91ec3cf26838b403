"""A query as it was written: the tables that it names, the columns that it needs of them, and its text over views."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import traverse_scope

from scan_core.expr.parse import require_bounded
from scan_core.model.errors import OptionError, PredicateError
from scan_core.model.schema import ListType, MapType, NestedField, Schema
from scan_core.sql.query_tree import DIALECT, qualified, takes_all_columns, traceable
from scan_core.sql.sql_functions import unrepeatable


@dataclass(frozen=True, slots=True)
class SqlQuery:
    """A parsed query.

    Attributes:
        sql: the query as written.
        tree: the parsed query.
        tables: names of the tables it reads, sorted.
        texts: values of its parameters that are text.
    """

    sql: str
    tree: exp.Query
    tables: tuple[str, ...]
    texts: tuple[str, ...] = ()

    def over_views(self, views: Mapping[str, str]) -> str:
        """Replace every table that has a view, named in `views`; the rest of the text does not change."""
        edits: list[tuple[int, int, str]] = []
        for table in (node for node in _table_nodes(self.tree) if _full_name(node) in views):
            alias = "" if table.alias else f" AS {exp.to_identifier(table.name, quoted=True).sql(dialect=DIALECT)}"
            edits.append((*_span(table.parts), views[_full_name(table)] + alias))
        for column in self.tree.find_all(exp.Column):
            qualifier = [part for part in column.parts if part is not column.this]
            if ".".join(part.name for part in qualifier) in views:
                edits.append((*_span(qualifier), qualifier[-1].sql(dialect=DIALECT)))
        text = self.sql
        for start, end, replacement in sorted(edits, reverse=True):
            text = text[:start] + replacement + text[end:]
        return text

    def spelled(self, table: str) -> str:
        """The name of a table as SQL, quoted."""
        node = next(node for node in _table_nodes(self.tree) if _full_name(node) == table)
        return ".".join(exp.to_identifier(part.name, quoted=True).sql(dialect=DIALECT) for part in node.parts)

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
        flat = _traceable(*self._over_schemas(schemas))
        return flat if isinstance(flat, str) else flat.copy()

    def _shared_tree(self, schemas: Mapping[str, Schema]) -> exp.Query | None:
        """The tree of `in_full`, for those who only look at it."""
        return _qualified(*self._over_schemas(schemas))

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


def parse_sql(sql: str, texts: Sequence[str] = ()) -> SqlQuery:
    """Parse one query; `texts` are the values of its parameters that are text.

    Raises:
        OptionError: a syntax error, or not a single SELECT.
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
    found = {_full_name(table) for table in _table_nodes(trees[0])}
    return SqlQuery(sql, trees[0], tuple(sorted(found)), tuple(texts))


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


def _full_name(table: exp.Table) -> str:
    return ".".join(part.name for part in table.parts)


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
