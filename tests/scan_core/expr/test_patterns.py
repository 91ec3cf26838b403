"""LIKE patterns and Java regular expressions on Arrow's kernels."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nevermore.scan_core.expr.strings import Wildcard, like_parts, like_prefix, matches_like, translated_regex


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("a_c%", ["abc", "a\ncd", "a.c"], ["ac", "xabc"]),
        ("_", ["a", "ä", "😀"], ["", "ab"]),
        (r"100\%", ["100%"], ["100x"]),
        (r"%\\", ["a\\"], ["a", "a\\b"]),
        (r"\\%", ["\\a"], ["a"]),
        (r"%\_%", ["a_b"], ["ab"]),
        ("a.c", ["a.c"], ["abc"]),
        ("%[x]_", ["[x]y", "a[x]z"], ["xy"]),
        ("a%b%c", ["abc", "aXbYc", "a\nb\nc"], ["acb"]),
    ],
)
def test_like_matches(pattern: str, matching: list[str], other: list[str]) -> None:
    found = matches_like(pa.array([*matching, *other, None]), pattern, "\\").to_pylist()
    assert found == [True] * len(matching) + [False] * len(other) + [None]


def test_escapes() -> None:
    assert like_parts("a!%b!!_", "!") == ("a%b!", Wildcard.ONE)
    assert like_parts("a\\b", None) == ("a\\b",)
    for malformed in ("a\\b", "a\\"):
        with pytest.raises(ValueError, match="must precede"):
            like_parts(malformed, "\\")


def test_prefix_of_a_pattern() -> None:
    assert like_prefix("ab%", "\\") == ("ab", True)
    assert like_prefix("ab%c", "\\") == ("ab", False)
    assert like_prefix("%ab", "\\") == ("", False)
    assert like_prefix("%", "\\") == ("", True)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("^a.c$", ["abc", "abc\n", "a\tc"], ["a\nc", "xabc", "abc\n\n"]),
        (r"\d{2}\.\w+", ["x12.a"], ["1.a"]),
        ("(?i)ABC", ["xabcx"], ["ab"]),
        (r"[^\s,]+,", ["a,"], [" ,"]),
        ("a|b$", ["xa1", "xb"], ["b1"]),
        (r"\$\(", ["$("], ["("]),
        ("(?s)a.b", ["a\nb"], ["ab"]),
        (r"a\sb", ["a\x0bb", "a b"], ["ab"]),
    ],
)
def test_regular_expressions_mean_what_java_means(pattern: str, matching: list[str], other: list[str]) -> None:
    found = pc.match_substring_regex(pa.array([*matching, *other]), pattern=translated_regex(pattern)).to_pylist()
    assert found == [True] * len(matching) + [False] * len(other)


@pytest.mark.parametrize(
    "pattern", ["(?=a)", "(?<!a)b", r"(a)\1", "a++", "[a&&b]", "[a[b]]", "a$b", r"\Ga", r"\bfoo", "(", "[", "\\"]
)
def test_what_re2_reads_differently_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="not supported"):
        translated_regex(pattern)
