"""SQL functions and expressions with known meaning.

States for each whether its result depends on one row, on many rows, or on something else. Everything that is not listed
is treated as unknown.
"""

import re
from collections.abc import Iterable, Mapping

from sqlglot import exp

_TABLE = """\
operator: Alias And Array BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Boolean Bracket Column DPipe Div Dot Escape
operator: HexString ILike Identifier IntDiv Interval Is Lambda Like Literal Mod Mul Neg Not Null Or Paren Placeholder
operator: RawString RegexpLike Star Struct Tuple Var
operator type: IntervalSpan
operator mixes: Add Between Case Coalesce EQ GT GTE If In LT LTE NEQ NullSafeEQ Nullif Sub
row: Abs Acos Acosh ArrayAppend ArrayCompact ArrayContains ArrayDistinct ArrayExcept ArrayFilter ArrayInsert
row: ArrayIntersect ArrayMax ArrayMin ArrayPosition ArrayPrepend ArrayRemove ArraySize ArraySlice ArraySort
row: ArrayToString ArraysZip Ascii Asin Asinh Atan Atan2 Atanh BitLength BitwiseCount BitwiseLeftShift
row: BitwiseRightShift Cast Cbrt Ceil Chr Concat ConcatWs Contains Cos Cosh Cot Csc DateDiff Day DayOfMonth DayOfWeek
row: DayOfYear Dayname Decode Degrees Elt Encode EndsWith EqualNull Exp Factorial Flatten Floor Format FromBase32
row: FromBase64 FromJson GenerateSeries Getbit Hex Initcap IsInf IsNan JSONExtract JSONExtractScalar JSONFormat
row: JSONKeys Left Length Levenshtein Ln Log Lower MD5 MakeInterval Map MapContainsKey MapFromEntries MapKeys Month
row: Monthname Nanvl Negative Overlay Pad ParseUrl Pi Pow Quarter Radians RegexpCount RegexpExtract RegexpExtractAll
row: RegexpInstr RegexpReplace RegexpSplit RegexpSubstr Repeat Replace Reverse Right Rint Round SHA SHA2 SafeAdd
row: SafeDivide SafeMultiply SafeSubtract Sec Sign Sin Sinh Soundex Space Split SplitPart Sqrt StartsWith StrPosition
row: StrToMap StrToTime Substring SubstringIndex Tan Tanh ToBase32 ToBase64 ToBinary ToChar ToNumber Transform
row: Translate Trim TryCast TsOrDsDiff Unhex UnixDate UnixToStr Upper VarMap Week WeekOfYear WidthBucket Xor Year
row: array_repeat array_union arrays_overlap bigint bin binary bround btrim cardinality contains conv crc32 dayname
row: decimal e elt expm1 find_in_set forall format_number get hash hypot iff isnotnull isnull json_array_length log1p
row: luhn_check make_dt_interval make_interval make_ym_interval map_concat map_entries map_filter map_values
row: map_zip_with mask monthname nullifzero octet_length overlay pmod positive printf quote rint shiftrightunsigned
row: smallint soundex tinyint to_csv to_varchar transform_keys transform_values try_add try_make_interval try_mod
row: try_multiply try_subtract try_to_binary try_to_number url_decode url_encode weekday xxhash64 zeroifnull zip_with
row gives-time: AddMonths Date DateAdd DateFromParts DateFromUnixDate DateSub DateTrunc LastDay NextDay StrToDate
row gives-time: TimestampFromParts TsOrDsAdd TsOrDsToDate UnixToTime date_from_unix_date make_date make_timestamp
row gives-time: make_timestamp_ltz make_timestamp_ntz next_day timestamp_micros timestamp_millis timestamp_seconds
row gives-time: try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz
row gives-time takes-time: AtTimeZone ConvertTimezone FromTimeZone TimestampTrunc TsOrDsToTimestamp convert_timezone
row gives-time parses: to_timestamp_ntz
row takes-time: Extract Hour Minute MonthsBetween Second TimeToStr UnixMicros UnixMillis UnixSeconds date_part
row takes-time: datepart unix_micros unix_millis unix_seconds
row takes-time parses: to_timestamp_ltz
row parses: try_to_date try_to_timestamp
row mixes: DecodeCase Greatest Least Nvl2
row unix: StrToUnix TimeToUnix
rows: AnyValue ApproxDistinct ApproxQuantile ArgMax ArgMin ArrayAgg ArrayUniqueAgg Avg BitmapConstructAgg BitmapOrAgg
rows: BitwiseAndAgg BitwiseOrAgg BitwiseXorAgg Corr Count CountIf CovarPop CovarSamp CumeDist DenseRank First
rows: FirstValue GroupConcat Grouping GroupingId Kurtosis Lag Last LastValue Lead LogicalAnd LogicalOr Max Median Min
rows: Mode NthValue Ntile PercentRank PercentileCont PercentileDisc Quantile Rank RegrAvgx RegrAvgy RegrCount
rows: RegrIntercept RegrR2 RegrSlope RegrSxx RegrSxy RegrSyy RowNumber Skewness Stddev StddevPop StddevSamp Sum
rows: Variance VariancePop every histogram_numeric mean some std try_avg try_sum
generator: Explode ExplodeOuter Inline Posexplode PosexplodeOuter Stack _ExplodeOuter
type: DataType DataTypeParam
unix: UnixTimestamp
"""
"""What is known, by sqlglot's class or, for a function without a class, by its name in lower case.

`operator`: a part of expressions other than a function. `row`: a function of one row that always returns the same result for
it. `rows`: a function of many rows. `generator`: returns several rows, always the same ones for the same row. `gives-time`:
returns a date or a time, whatever type sqlglot infers. `takes-time`: converts its first argument, which may be text, to a time.
`parses`: parses text by a format or, without one, as a cast does. `mixes`: brings its operands to one type, so that text next to
a time becomes a time. `unix`: reads the clock if it has no argument.
"""


def _named(kind: str) -> frozenset[str]:
    """The names of one kind."""
    lines = (line.split(":") for line in _TABLE.splitlines())
    return frozenset(name for kinds, names in lines if kind in kinds.split() for name in names.split())


_ROW_WISE, _TYPES, _GENERATORS = _named("operator") | _named("row"), _named("type"), _named("generator")
_AGGREGATES, _GIVE_TIMES, _TAKE_TIMES = _named("rows"), _named("gives-time"), _named("takes-time")
_PARSE, _MIX, _UNIX_TIMES = _named("parses"), _named("mixes"), _named("unix")
_CLOCK = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
"""Text that Spark reads as the time of the run where it is converted to a date or time."""
_DATE = re.compile(r"\s*[+-]?\d{4,7}(-\d{1,2}(-\d{1,2}([ T].*)?)?)?\s*", re.DOTALL)
"""Text of a date or time that begins with its date: without one, Spark uses today's."""
_LETTERS = re.compile("[A-Za-z]")
_MOMENTS = ("timestamp", "timestamptz", "timestampltz")
_WITHOUT_ZONE = ("date", "timestampntz")


def is_known_part(node: exp.Expression) -> bool:
    """Whether this is an operator, a function of one row, or another known part of an expression."""
    return _key(node) in _ROW_WISE | _TYPES


def is_generator(node: exp.Expression) -> bool:
    """Whether this is a call of a function that returns several rows for one, always the same ones."""
    return _key(node) in _GENERATORS


def is_aggregate(node: exp.Expression) -> bool:
    """Whether this is a call of an aggregate function."""
    return isinstance(node, exp.AggFunc) or _key(node) in _AGGREGATES


def is_row_wise(expression: exp.Expression) -> bool:
    """Whether the expression depends on one row alone and always gives the same result for it."""
    # `in (select ...)` has the class of `in (1, 2)`, but depends on the rows of a query
    return reads_clock(expression) is None and all(
        is_known_part(node) and not (isinstance(node, exp.In) and node.args.get("query")) for node in expression.walk()
    )


def unrepeatable(tree: exp.Expression, texts: Iterable[str] = ()) -> str | None:
    """Name what in a query may give another answer for the same rows; None if nothing does.

    Args:
        tree: a tree with types; a node without a type is treated as text.
        texts: values of the query's parameters that are text.
    """
    # an allow-list: a function that sqlglot or this module does not know may be random
    known = _ROW_WISE | _AGGREGATES | _GENERATORS | {"Exists"}
    for node in tree.walk():
        if isinstance(node, exp.Func) and _key(node) not in known:
            return f"{str(node.name if isinstance(node, exp.Anonymous) else node.sql_name()).lower()}()"
    return next((_quoted(text) for text in texts if _CLOCK.match(text)), None) or reads_clock(tree)


def reads_clock(tree: exp.Expression) -> str | None:
    """Name what in an expression may read the date of the run; None if nothing does.

    `timestamp 'now'` does, and so does a text that is a time alone, `12:30`, wherever it is converted to a moment.
    """
    return next((why for node in tree.walk() if (why := _why_clock(node)) is not None), None)


def _why_clock(node: exp.Expression) -> str | None:
    """Name what one node, without its operands, may read from the clock."""
    name = _key(node)
    if isinstance(node, exp.TableSample):
        return "a sample"
    if name in _UNIX_TIMES and node.this is None:
        return "unix_timestamp()"
    if _is_text(node) and _CLOCK.match(str(node.this)):
        return _quoted(str(node.this))
    if isinstance(node, exp.Cast) and node.is_type(*_MOMENTS, *_WITHOUT_ZONE):
        return _why_of_today(node.this, is_moment=not node.is_type(*_WITHOUT_ZONE))
    if name in _MIX:
        operands = _operands(node)
        if any(_is_moment(operand) for operand in operands):
            return next((why for o in operands if (why := _why_of_today(o, is_moment=True))), None)
        return None
    if name in {"TsOrDsToDate", "Date"} and not node.args.get("format"):
        return _why_of_today(node.this, is_moment=False)
    if name in _TAKE_TIMES:
        return _why_of_today(_time_of(node), is_moment=True)
    if name in _PARSE and len(node.expressions) == 1:
        return _why_of_today(node.expressions[0], is_moment=True)
    return None


def _why_of_today(operand: exp.Expression | None, *, is_moment: bool) -> str | None:
    """Name what in an operand that becomes a date or time may depend on today; None if nothing does."""
    while isinstance(operand, exp.Paren):
        operand = operand.this
    if operand is None or not _may_be_text(operand):
        return None
    if isinstance(operand, exp.Literal | exp.RawString):
        return None if _DATE.fullmatch(str(operand.this)) else _quoted(str(operand.this))
    if is_moment:
        return f"the time of {operand.sql(dialect='spark')}, which may be text without a date,"
    texts = [str(node.this) for node in operand.find_all(exp.Literal, exp.RawString) if _is_text(node)]
    has_column = operand.find(exp.Column) is not None
    is_certain = (
        has_column and not any(_LETTERS.search(text) for text in texts) and operand.find(exp.Placeholder) is None
    )
    return None if is_certain or isinstance(operand, exp.Placeholder) else f"the date of {operand.sql(dialect='spark')}"


def _may_be_text(node: exp.Expression) -> bool:
    """Whether a value may be text: its type is text or unknown."""
    # texts of parameters are searched for such words separately
    if _key(node) in _GIVE_TIMES or isinstance(node, exp.Null | exp.Placeholder):
        return False
    if isinstance(node, exp.Literal):
        return bool(node.is_string)
    kind = node.type
    return kind is None or kind.is_type("unknown", *exp.DataType.TEXT_TYPES)


def _is_moment(node: exp.Expression) -> bool:
    return type(node).__name__ in {"TimestampTrunc", "AtTimeZone", "FromTimeZone", "TimestampFromParts"} or (
        node.type is not None and node.is_type(*_MOMENTS)
    )


def _operands(node: exp.Expression) -> list[exp.Expression]:
    """Operands that are brought to one type."""
    match node:
        case exp.Case():
            results = [branch.args.get("true") for branch in node.args.get("ifs") or ()]
            compared = [node.this, *(branch.this for branch in node.args.get("ifs") or ())] if node.this else []
            return [part for part in (*results, node.args.get("default"), *compared) if part is not None]
        case exp.If():
            parts = (node.args.get("true"), node.args.get("false"))
            return [part for part in parts if part is not None]
        case exp.In():
            query = node.args.get("query")
            asked = query.unnest().selects if query is not None else []
            return [node.this, *node.expressions, *(select.unalias() for select in asked)]
        case _:
            return [part for part in node.iter_expressions() if not isinstance(part, exp.DataType)]


def _time_of(node: exp.Expression) -> exp.Expression | None:
    """The argument that a function converts to a time."""
    if isinstance(node, exp.Extract):
        return node.expression
    if not isinstance(node, exp.Anonymous):
        found = node.args.get("timestamp") or node.this
        return found if isinstance(found, exp.Expression) else None
    return node.expressions[-1] if node.expressions else None


def _key(node: exp.Expression) -> str:
    """Name of a node in the sets above: its class or, for a function without a class, its name in lower case."""
    return str(node.name).lower() if isinstance(node, exp.Anonymous) else type(node).__name__


def _is_text(node: exp.Expression) -> bool:
    return isinstance(node, exp.RawString) or (isinstance(node, exp.Literal) and bool(node.is_string))


def _quoted(text: str) -> str:
    return f"'{text.strip()}'"


_PARTS_TABLE = """\
Select: expressions from from_ joins where group having order sort distribute cluster limit offset distinct hint laterals
From TableAlias Where Having Exists IgnoreNulls RespectNulls: this
Join: this on side kind
Table: this alias
Subquery: this alias order limit offset
Lateral: this view outer alias
Group: expressions rollup cube grouping_sets
Order Sort Cluster Distribute Distinct Rollup Cube GroupingSets: expressions
Ordered: this desc nulls_first
Limit Offset: expression
Union Except Intersect: this expression distinct order limit offset
In: this expressions query
Window: this partition_by order spec over
WindowSpec: kind start start_side end end_side
Filter WithinGroup: this expression
"""
_PARTS: Mapping[str, frozenset[str]] = {
    name: frozenset(parts.split())
    for names, parts in (line.split(":") for line in _PARTS_TABLE.splitlines())
    for name in names.split()
}
"""Parts of queries, and the arguments that are understood of each."""
_WORDS = {"Where": "WHERE", "Lateral": "a lateral view", "Pivot": "a pivot", "TableSample": "a sample"}
_JOINS = {
    "INNER": ("", "INNER", "CROSS"),
    "LEFT": ("LEFT", "LEFT OUTER"),
    "RIGHT": ("RIGHT", "RIGHT OUTER"),
    "FULL": ("FULL", "FULL OUTER"),
    "SEMI": ("SEMI", "LEFT SEMI"),
    "ANTI": ("ANTI", "LEFT ANTI"),
}
_KIND_OF_JOIN = {text: kind for kind, texts in _JOINS.items() for text in texts}
"""What a side and a kind mean together: which rows of either source are kept."""


_LOOSE = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseLeftShift, exp.BitwiseRightShift, exp.DPipe)
"""Operators that sqlglot groups from left to right, looser than `+`; Spark has a level for each, and `||` on that of `+`."""


def _may_group_otherwise(node: exp.Expression) -> bool:
    """Whether Spark may take other operands for those of an operator."""
    if not isinstance(node, _LOOSE):
        return False
    others = (*_LOOSE, exp.Add, exp.Sub) if isinstance(node, exp.DPipe) else _LOOSE
    return any(isinstance(o, others) and type(o) is not type(node) for o in (node.this, node.expression))


def join_kind(join: exp.Join) -> str | None:
    """`INNER`, `LEFT`, `RIGHT`, `FULL`, `SEMI` or `ANTI`, however it is written; None for any other join."""
    return _KIND_OF_JOIN.get(f"{join.side} {join.kind}".strip().upper())


def why_not_understood(tree: exp.Expression) -> str | None:
    """The first part of a tree that is not understood, in words; None if all are."""
    for node in tree.walk(prune=lambda node: isinstance(node, exp.Hint)):
        # what is not listed may change which rows there are: nothing is refused that is listed, nothing taken that is not
        known = _PARTS.get(type(node).__name__)
        # any function may compute a value: which ones are trusted with more is asked where a value decides
        if known is None and not isinstance(node, exp.Func | exp.Hint) and not is_known_part(node):
            return f"{_in_words(node)} is not understood"
        listed = (known or frozenset()) | ({"columns"} if isinstance(node.parent, exp.Lateral) else set())
        for name, value in node.args.items() if known is not None else ():
            if value and name not in listed:
                return f"{_in_words(node)} with {name.strip('_').replace('_', ' ')} is not understood"
        if (reason := _why_not_a_source(node)) is not None:
            return f"{reason} is not understood"
        if _may_group_otherwise(node):
            return f"{node.sql(dialect='spark')} without parentheses is not understood"
    return None


def _why_not_a_source(node: exp.Expression) -> str | None:
    """What a node brings into a FROM that is not understood, in words."""
    match node:
        case exp.Join() if join_kind(node) is None:
            return f"{node.side} {node.kind} JOIN".strip()
        case exp.Join() if node.args.get("on") is None and join_kind(node) != "INNER":
            return f"{join_kind(node)} JOIN without ON"
        case exp.Join() | exp.From() if not isinstance(node.this, exp.Table | exp.Subquery):
            return f"{_in_words(node.this)} as a source"
        case exp.Lateral() if not (node.args.get("view") and is_generator(node.this)):
            return f"{_in_words(node)} of {node.this.sql(dialect='spark')}"
        case exp.Table() if not isinstance(node.this, exp.Identifier):
            return "a function as a source"
        case _:
            return None


def _in_words(node: exp.Expression) -> str:
    name = type(node).__name__
    return _WORDS.get(name, name.upper())
