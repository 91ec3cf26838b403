"""LIKE patterns and regular expressions: taken apart, checked, and translated to what Arrow's RE2 understands.

Spark matches with Java's regular expressions. What RE2 lacks or reads differently is refused, never approximated.
"""

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from scan_core.rows.buffers import scalar

_JAVA_LINE_END = r"\n\r\x{85}\x{2028}\x{2029}"
_SIMPLE_ESCAPES = frozenset("dDwWtnrf\\.[]{}()*+?^$|/-\"'`~!@#%&=:;<>, _")
_POSIX = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": r"!-/:-@\[-`{-~",
    "ASCII": r"\x00-\x7f",
    "Space": r"\x09-\x0d ",
}


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


def check_like_pattern(pattern: str, escape: str | None) -> None:
    """Raise ValueError if the pattern is malformed."""
    like_parts(pattern, escape)


@dataclass(frozen=True, slots=True)
class Matcher:
    """The cheapest Arrow kernel that decides a pattern."""

    kind: Literal["all", "equal", "prefix", "suffix", "contains", "regex"]
    text: str

    def __call__(self, values: pa.Array) -> pa.Array:
        """One boolean per value, NULL for NULL."""
        match self.kind:
            case "all":
                return pc.starts_with(values, pattern="")
            case "equal":
                return pc.equal(values, scalar(self.text, values.type))
            case "prefix":
                return pc.starts_with(values, pattern=self.text)
            case "suffix":
                return pc.ends_with(values, pattern=self.text)
            case "contains":
                return pc.match_substring(values, pattern=self.text)
            case _:
                return pc.match_substring_regex(values, pattern=self.text)


@lru_cache(maxsize=256)
def like_matcher(pattern: str, escape: str | None) -> Matcher:
    """The kernel for a LIKE pattern."""
    match like_parts(pattern, escape):
        case ():
            return Matcher("equal", "")
        case (str(text),):
            return Matcher("equal", text)
        case (Wildcard.MANY,):
            return Matcher("all", "")
        case (str(text), Wildcard.MANY):
            return Matcher("prefix", text)
        case (Wildcard.MANY, str(text)):
            return Matcher("suffix", text)
        case (Wildcard.MANY, str(text), Wildcard.MANY):
            return Matcher("contains", text)
        case parts:
            wild = {Wildcard.ONE: ".", Wildcard.MANY: ".*"}
            body = "".join(_quote(p) if isinstance(p, str) else wild[p] for p in parts)
            return Matcher("regex", rf"(?s)\A{body}\z")


def like_prefix(pattern: str, escape: str | None) -> tuple[str, bool]:
    """The literal text a match starts with, and whether everything that starts so matches."""
    parts = like_parts(pattern, escape)
    prefix = parts[0] if parts and isinstance(parts[0], str) else ""
    rest = parts[1:] if prefix else parts
    return prefix, rest == (Wildcard.MANY,)


def is_like_exact(pattern: str, escape: str | None) -> bool:
    """Has the pattern no wildcard?"""
    return all(isinstance(p, str) for p in like_parts(pattern, escape))


def _quote(text: str) -> str:
    return re.sub(r"([^\w\s]|_)", r"\\\1", text, flags=re.ASCII) if text.isascii() else _quote_unicode(text)


def _quote_unicode(text: str) -> str:
    return "".join(c if not c.isascii() else _quote(c) for c in text)


def check_regex(pattern: str) -> None:
    """Raise ValueError if the regular expression is malformed or means something else in RE2."""
    regex_matcher(pattern)


@lru_cache(maxsize=256)
def regex_matcher(pattern: str) -> Matcher:
    """The kernel that finds Java's regular expression `pattern` anywhere in a string."""
    translated = _Translation(pattern).result
    try:
        pc.match_substring_regex(pa.array([""]), pattern=translated)
    except pa.ArrowInvalid as error:
        raise ValueError(f"the regular expression {pattern!r} is not supported: {error}") from error
    return Matcher("regex", translated)


class _Translation:
    """One pass over a Java pattern; refuses what has no equal in RE2."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        flags = re.match(r"\(\?([is]+)\)", pattern)
        self._dot_matches_all = bool(flags and "s" in flags[1])
        out = []
        if flags:
            out.append(flags[0])
            self._at = flags.end()
        while self._at < len(pattern):
            out.append(self._next())
        self.result = "".join(out)

    def _refuse(self, what: str) -> ValueError:
        return ValueError(f"the regular expression {self._pattern!r} is not supported: {what}")

    def _next(self) -> str:
        character = self._pattern[self._at]
        self._at += 1
        match character:
            case "\\":
                return self._escape(in_class=False)
            case "[":
                return self._character_class()
            case ".":
                return "." if self._dot_matches_all else f"[^{_JAVA_LINE_END}]"
            case "$":
                if self._at < len(self._pattern) and self._pattern[self._at] not in ")|":
                    raise self._refuse("$ before the end")
                return rf"(?:\r\n|[{_JAVA_LINE_END}])?\z"
            case "(" if self._pattern.startswith("?", self._at) and not self._pattern.startswith("?:", self._at):
                raise self._refuse("groups other than (...) and (?:...)")
            case "*" | "+" | "?" | "}" if self._pattern.startswith("+", self._at):
                raise self._refuse("possessive quantifiers")
            case _:
                return character

    def _escape(self, *, in_class: bool) -> str:
        if self._at >= len(self._pattern):
            raise self._refuse("it ends in a backslash")
        character = self._pattern[self._at]
        self._at += 1
        if character == "s":
            return r"\x09-\x0d " if in_class else r"[\x09-\x0d ]"
        if character == "S" and not in_class:
            return r"[^\x09-\x0d ]"
        if character == "p" and (found := re.match(r"\{(\w+)\}", self._pattern[self._at :])):
            self._at += found.end()
            if found[1] in _POSIX:
                return _POSIX[found[1]] if in_class else f"[{_POSIX[found[1]]}]"
            return rf"\p{{{found[1].removeprefix('Is')}}}"
        if character in {"A", "z"} and not in_class:
            return f"\\{character}"
        if character in _SIMPLE_ESCAPES:
            return f"\\{character}" if not character.isspace() else character
        raise self._refuse(f"the escape \\{character}")

    def _character_class(self) -> str:
        out = ["["]
        if self._pattern.startswith("^", self._at):
            self._at += 1
            out.append("^")
        start = self._at
        while True:
            if self._at >= len(self._pattern):
                raise self._refuse("a [ is not closed")
            character = self._pattern[self._at]
            self._at += 1
            if character == "]" and self._at - 1 > start:
                return "".join([*out, "]"])
            if character == "[" or self._pattern.startswith("&&", self._at - 1) or character == "]":
                raise self._refuse(f"{character} inside [...]")
            out.append(self._escape(in_class=True) if character == "\\" else character)
