"""String functions, LIKE patterns and regular expressions on columns. Lengths count code points, as in Spark."""

import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nevermore.scan_core.expr.coercion import INT_RANGE
from nevermore.scan_core.expr.vectors import Kernel, Operand, Vector
from nevermore.scan_core.model.schema import Type
from nevermore.scan_core.rows.buffers import scalar


class Wildcard(Enum):
    """The two wildcards of LIKE."""

    ONE = "_"
    MANY = "%"


def like_parts(pattern: str, escape: str | None) -> tuple[str | Wildcard, ...]:
    """Literal runs and wildcards in order; neighbouring % are one.

    Raises:
        ValueError: an escape character before something that needs none, or at the end (an error in Spark, too).
    """
    parts: list[str | Wildcard] = []
    characters = iter(pattern)
    for character in characters:
        if escape is not None and character == escape:
            character = next(characters, "")  # noqa: PLW2901  # the escaped one
            if character not in {"_", "%", escape}:
                raise ValueError(f"in the pattern {pattern!r} the escape {escape!r} must precede _, % or itself")
        elif character in {"_", "%"}:
            if character == "_" or not parts or parts[-1] is not Wildcard.MANY:
                parts.append(Wildcard(character))
            continue
        if parts and isinstance(parts[-1], str):
            parts[-1] += character
        else:
            parts.append(character)
    return tuple(parts)


def matches_like(values: pa.Array, pattern: str, escape: str | None) -> pa.Array:
    """Which values match a LIKE pattern; NULL for NULL."""
    parts = like_parts(pattern, escape)
    if is_like_exact(pattern, escape):
        return pc.equal(values, scalar("".join(map(str, parts)), values.type))
    if any(isinstance(part, str) and re.search(r"[\\%_]", part) for part in parts):
        # Arrow takes escapes in prefixes and suffixes for text
        wild = {Wildcard.ONE: ".", Wildcard.MANY: ".*"}
        body = "".join(
            re.sub(r"[!-/:-@\[-`{-~]", r"\\\g<0>", part) if isinstance(part, str) else wild[part] for part in parts
        )
        return pc.match_substring_regex(values, pattern=rf"(?s)\A{body}\z")
    return pc.match_like(values, pattern="".join(part if isinstance(part, str) else part.value for part in parts))


def like_prefix(pattern: str, escape: str | None) -> tuple[str, bool]:
    """The literal text a match starts with, and whether everything that starts so matches."""
    parts = like_parts(pattern, escape)
    prefix = parts[0] if parts and isinstance(parts[0], str) else ""
    rest = parts[1:] if prefix else parts
    return prefix, rest == (Wildcard.MANY,)


def is_like_exact(pattern: str, escape: str | None) -> bool:
    """Whether the pattern has no wildcard."""
    return all(isinstance(p, str) for p in like_parts(pattern, escape))


_LINE_END = r"\n\r\x{85}\x{2028}\x{2029}"
_PIECE = re.compile(r"\\.|\[\^?+(?:\\.|&(?!&)|[^\]\[\\&])+\]|\(\?(?!:)|[*+?}]\+|.", re.DOTALL)
"""An escape, a class of characters, something that is refused, or a single character."""
_IN_CLASS = {rf"\{c}": rf"\{c}" for c in "dDwWtnrf\\.[]{}()*+?^$|/-\"'`~!@#%&=:;<>,_"} | {
    r"\ ": " ",
    r"\s": r"\x09-\x0d ",
}
_ESCAPES = _IN_CLASS | {r"\s": r"[\x09-\x0d ]", r"\S": r"[^\x09-\x0d ]", r"\A": r"\A", r"\z": r"\z"}
_REFUSED = {
    "(?": "groups other than (...) and (?:...)",
    "[": "a [ is not closed, or [...] holds [, && or a leading ]",
    "$": "$ before the end",
    "\\": "it ends in a backslash",
    **dict.fromkeys(("*+", "++", "?+", "}+"), "possessive quantifiers"),
}


@lru_cache(maxsize=256)
def translated_regex(pattern: str) -> str:
    """Java's regular expression `pattern` as Arrow finds it anywhere in a string.

    Raises:
        ValueError: it is malformed or means something else in RE2.
    """
    flags = re.match(r"\(\?([is]+)\)", pattern)
    begin = flags.end() if flags else 0

    def escaped(found: re.Match[str], known: Mapping[str, str]) -> str:
        if found[0] not in known:
            raise ValueError(f"the escape {found[0]}")
        return known[found[0]]

    def translated(found: re.Match[str]) -> str:
        piece = found[0]
        if piece == "." and not (flags and "s" in flags[1]):
            return f"[^{_LINE_END}]"
        if piece == "$" and pattern[found.end() : found.end() + 1] in {"", ")", "|"}:
            return rf"(?:\r\n|[{_LINE_END}])?\z"
        if piece in _REFUSED:
            raise ValueError(_REFUSED[piece])
        if piece[0] == "[":
            return re.sub(r"\\.", lambda inner: escaped(inner, _IN_CLASS), piece, flags=re.DOTALL)
        return escaped(found, _ESCAPES) if piece[0] == "\\" else piece

    try:
        result = pattern[:begin] + "".join(map(translated, _PIECE.finditer(pattern, begin)))
        pc.match_substring_regex(pa.array([""]), pattern=result)
    except (ValueError, pa.ArrowInvalid) as error:
        raise ValueError(f"the regular expression {pattern!r} is not supported: {error}") from error
    return result


_SPECIAL_LOWER = "[İΣ]"
"""Characters whose lower case depends on context or is more than one character."""
_SPECIAL_UPPER = "[ŉßǰΐΰևẖ-ẚᾀ-ᾯᾲ-ᾴᾶ-ᾼῂ-ῄῆ-ῌῒΐῖῗῢ-ῤῦῧῲ-ῴῶ-ῼﬀ-ﬆﬓ-ﬗ]"


def unary(function: Callable[[Any], Any]) -> Kernel:
    """The kernel of a function of Arrow on one argument."""
    return lambda arguments, _types, _result: Vector(function(arguments[0]))


def lower(array: pa.Array) -> pa.Array:
    """Lower case as Java has it, context and expansion included."""
    return with_special(array, pc.utf8_lower(array), _SPECIAL_LOWER, str.lower)


def upper(array: pa.Array) -> pa.Array:
    """Upper case as Java has it, expansions included."""
    return with_special(array, pc.utf8_upper(array), _SPECIAL_UPPER, str.upper)


def with_special(array: pa.Array, simple: pa.Array, special: str, convert: Callable[[str], str]) -> pa.Array:
    """`simple`, but with what `convert` makes of the values that match the pattern `special`."""
    if not special.isascii() and pc.all(pc.string_is_ascii(array), min_count=0).as_py():
        return simple
    mask = pc.fill_null(pc.match_substring_regex(array, pattern=special), False)
    if not pc.any(mask, min_count=0).as_py():
        return simple
    encoded = array.filter(mask).dictionary_encode()
    converted = pa.array([convert(v) for v in encoded.dictionary.to_pylist()], array.type)
    return pc.replace_with_mask(simple, mask, converted.take(encoded.indices))


def _text_length(array: pa.Array) -> pa.Array:
    return pc.utf8_length(array).cast(pa.int32())


def _with_constants(function: Callable[..., pa.Array]) -> Kernel:
    """The kernel of a function of text and constants."""

    def kernel(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:  # noqa: ARG001
        return Vector(function(arguments[0], *(a.as_py() for a in arguments[1:])))

    return kernel


def _slice(text: pa.Array, position: int, length: int | None = None) -> pa.Array:
    """Spark's substr: from 1, 0 is like 1, negative counts from the end; length cuts what lies before the start, too."""
    if length is not None and length <= 0:
        return _emptied(text)
    if position > 0:
        start = position - 1
        return pc.utf8_slice_codeunits(text, start, None if length is None else start + length)
    if position == 0:
        return text if length is None else pc.utf8_slice_codeunits(text, 0, length)
    if length is None:  # Spark takes 2**31 - 1 for the length, which is one too few from the far end
        return (
            pc.utf8_slice_codeunits(text, 0, -1)
            if position == INT_RANGE[0]
            else pc.utf8_slice_codeunits(text, position)
        )
    # a start before the first character eats up length: by distinct text length; only few occur
    lengths = pc.utf8_length(text)
    short = pc.unique(pc.drop_null(lengths.filter(pc.less(lengths, -position)))).to_pylist()
    end = position + length
    result = pc.utf8_slice_codeunits(text, position) if end >= 0 else pc.utf8_slice_codeunits(text, position, end)
    for size in short:
        kept = max(0, size + end)
        cut = pc.utf8_slice_codeunits(text, 0, kept) if kept else _emptied(text)
        result = pc.if_else(pc.equal(lengths, size), cut, result)
    return result


def _emptied(text: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_valid(text), pa.scalar("", text.type), pa.scalar(None, text.type))


def _left(text: pa.Array, count: int) -> pa.Array:
    return pc.utf8_slice_codeunits(text, 0, count) if count > 0 else _emptied(text)


def _right(text: pa.Array, count: int) -> pa.Array:
    return pc.utf8_slice_codeunits(text, -count) if count > 0 else _emptied(text)


def _concat(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:  # noqa: ARG001
    return Vector(pc.binary_join_element_wise(*arguments, ""))


def _replace(text: pa.Array, wanted: str, by: str = "") -> pa.Array:
    return text if wanted == "" else pc.replace_substring(text, pattern=wanted, replacement=by)


KERNELS: Mapping[str, Kernel] = {
    "lower": unary(lower),
    "upper": unary(upper),
    "length": unary(_text_length),
    "octet_length": unary(lambda array: pc.binary_length(array).cast(pa.int32())),
    "trim": unary(lambda a: pc.utf8_trim(a, characters=" ")),
    "ltrim": unary(lambda a: pc.utf8_ltrim(a, characters=" ")),
    "rtrim": unary(lambda a: pc.utf8_rtrim(a, characters=" ")),
    "reverse": unary(pc.utf8_reverse),
    "startswith": _with_constants(lambda text, part: pc.starts_with(text, pattern=part)),
    "endswith": _with_constants(lambda text, part: pc.ends_with(text, pattern=part)),
    "contains": _with_constants(lambda text, part: pc.match_substring(text, pattern=part)),
    "substr": _with_constants(_slice),
    "left": _with_constants(_left),
    "right": _with_constants(_right),
    "concat": _concat,
    "replace": _with_constants(_replace),
    "rlike": _with_constants(lambda text, pattern: pc.match_substring_regex(text, pattern=translated_regex(pattern))),
}
