"""Configs of a few lines that stand for very much: refused with their line, at once."""

import time
from pathlib import Path

import pytest

from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.publish.query import parse_query

LAUGHS = "a0: &a0 [lol, lol]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}\n" for i in range(1, 40))


@pytest.mark.each(8)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, r"nevermore.yaml:\d+: more than 100000 values"),
        (MERGED, r"nevermore.yaml:\d+: more than 100000 values"),
        ("tables: " + "[" * 50_000, "nevermore.yaml: nested deeper than 50 levels"),
        ("tables: " + "{a: " * 50_000, "nevermore.yaml: nested deeper than 50 levels"),
        ("tables: " + "[" * 60 + "]" * 60, "nevermore.yaml:1: nested deeper than 50 levels"),
        ("tables: &t {shop.orders: *t}", "nevermore.yaml:1: nested deeper than 50 levels"),
        ("tables:\n  a: &a\n    - *a\n", "nevermore.yaml:2: nested deeper than 50 levels"),
    ],
    ids=["billion laughs", "doubling", "brackets", "braces", "closed", "itself", "its own list"],
)
def test_a_bomb_is_refused_at_once(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "nevermore.yaml"
    path.write_text(text)
    started = time.process_time()
    with pytest.raises(ConfigError, match=message):
        load(path)
    assert time.process_time() - started < 10


def test_published_sql_that_nests_too_deeply_is_refused() -> None:
    sql = "select " + "(" * 5_000 + "1" + ")" * 5_000 + " from shop.orders"
    with pytest.raises(ConfigError, match=r"published shop.out: the SQL nests too deeply"):
        parse_query("shop.out", sql, None, {"shop.orders"})
