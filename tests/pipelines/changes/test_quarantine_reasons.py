"""Reasons in quarantines: each shows its value, and those that differ in it alone are counted together."""

from pathlib import Path

from nevermore.pipelines.changes.change_arrays import NOT_FOUND_REASON
from nevermore.pipelines.changes.quarantine import held_events, reasons
from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import open_catalog
from tests.pipelines.project import Project, event

UNSENT = "__debezium_unavailable_value"


def test_reasons_that_differ_in_their_value_alone_are_counted_together(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["id"]}})
    wrong = [event("c", {"id": 2, "n": word}) for word in ("it's", "'b'")]
    unsent = [event("u", {"id": 7, "n": UNSENT})]
    project.land("1.jsonl", [*(event("c", {"id": key, "n": 1}) for key in range(9, 15)), *wrong, *unsent])
    project.run()
    catalog = open_catalog(load(tmp_path / "nevermore.yaml"))
    held = [found["reason"] for found in held_events(catalog, "shop.products", 9)]
    missing = f'{NOT_FOUND_REASON.format("n")}: key {{"id":7}}'
    assert held == ["column n: text 'it's' is no long", "column n: text ''b'' is no long", missing]
    assert reasons(catalog, "shop.products") == {"column n: text ... is no long": 2, missing: 1}


def test_half_of_a_surrogate_pair_is_shown_as_it_was_written(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["id"], "max_quarantine_ratio": 1}})
    words = ["\ud800x", "a\nb\ude00", "😀", "", "\ud800" * 200]
    project.land("1.jsonl", [event("c", {"id": key, "n": word}) for key, word in enumerate(words)])
    project.run()
    held = [
        found["reason"] for found in held_events(open_catalog(load(tmp_path / "nevermore.yaml")), "shop.products", 9)
    ]
    remark = " (half of a surrogate pair) is no string"
    assert held[:2] == [f"column n: text '{text}'{remark}" for text in (r"\ud800x", r"a\nb\ude00")]
    assert held[2].startswith(r"column n: text '\ud800\ud800")
    assert held[2].endswith(f"...'{remark}")
    assert [row["n"] for row in project.rows()] == ["😀", ""]
