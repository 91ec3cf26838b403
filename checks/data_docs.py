"""`nevermore docs`: a folder of pages with the expectations of tables and how their last checks ended.

Great Expectations draws their parts; the pages load nothing from elsewhere.
"""

import html
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nevermore.checks.configured import kept_expectations
from nevermore.checks.expectations import NAMES
from nevermore.checks.kept_results import KeptResults
from nevermore.checks.mirror_checks import mirror_subject
from nevermore.pipelines.config.project import Config
from nevermore.pipelines.iceberg.catalog import find_table, has_catalog, open_catalog
from nevermore.pipelines.publish.audit import CheckResult
from nevermore.scan_core import open_table
from nevermore.scan_core.io import require_package, write_whole
from nevermore.scan_core.parts import Html, escaped, grid, page

INDEX = "index.html"
TEMPLATE = Path(__file__).with_suffix(".html")
"""The page, of the parts that Great Expectations draws. Its own page loads styles, scripts and pictures from several servers."""


@dataclass(frozen=True, slots=True)
class Documented:
    """A table with expectations.

    Attributes:
        table: its name.
        page: its file in the folder; None if it was not checked yet.
        passed: whether all expectations held; None if it was not checked yet.
        expectations: number of expectations that were checked.
        snapshot_id: the snapshot that was checked.
    """

    table: str
    page: str | None
    passed: bool | None
    expectations: int = 0
    snapshot_id: int | None = None


def page_of(table: str) -> str:
    """The file name of a table's page, as text of an address."""
    return f"{table}.html"


def build_docs(config: Config, names: Sequence[str], folder: Path) -> list[Documented]:
    """Write a page for each table with expectations, and an index; pages of the folder that are not theirs stay.

    Args:
        config: the project.
        names: mirrors and published tables.
        folder: where to write; created if necessary.

    Raises:
        MissingPackageError: Great Expectations is not installed.
        OSError: a page cannot be written.
    """
    found = []
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        checks = config.published[name].checks if name in config.published else config.tables[name].checks
        if not checks.has_expectations:
            continue
        kept = _kept(config, name)
        if kept is None or not kept.documents:
            found.append(Documented(name, None, None))
            continue
        document = _joined(name, kept)
        write_whole(folder / page_of(name), _rendered(document))
        results = document["results"]
        found.append(Documented(name, page_of(name), document["success"], len(results), kept.snapshot_id))
    write_whole(folder / INDEX, _index(found))
    return found


def newest_results(config: Config, name: str) -> list[CheckResult]:
    """The newest kept results of the expectations of a mirror or published table."""
    kept = _kept(config, name)
    return [] if kept is None else [result for check, result in kept.results.items() if check in NAMES.values()]


def _kept(config: Config, name: str) -> KeptResults | None:
    if name in config.published:
        handle = find_table(open_catalog(config), name) if has_catalog(config) else None
        if handle is None:
            return None
        opened = open_table(handle, options=config.scan_options)
        return kept_expectations(config, name, opened, config.published[name].key)
    subject = mirror_subject(config, name)
    return None if subject is None else kept_expectations(config, name, subject.opened, subject.key)


def _index(found: Sequence[Documented]) -> Html:
    rows = []
    for one in found:
        name = escaped(one.table)
        link = name if one.page is None else Html(f"<a href='{quote(one.page)}'>{name}</a>")
        outcome = {None: f"not checked yet: nevermore check {one.table}", True: "passed", False: "failed"}[one.passed]
        rows.append([link, outcome, one.expectations, "" if one.snapshot_id is None else str(one.snapshot_id)])
    shown = grid(["table", "outcome", "expectations", "snapshot"], rows, max_rows=len(rows))
    return page("Expectations", shown if rows else Html("<p>No table of the config has expectations.</p>"))


def _joined(name: str, kept: KeptResults) -> dict[str, Any]:
    """One result of Great Expectations for a table: it was checked in parts, by the rows that each expectation is about."""
    results = [_shown(result) for document in kept.documents for result in document["results"]]
    good = sum(bool(result["success"]) for result in results)
    checked = datetime.fromtimestamp(kept.full_at, UTC)
    run = {"run_name": f"snapshot {kept.snapshot_id}", "run_time": checked.isoformat()}
    return {
        "success": good == len(results),
        "results": sorted(results, key=lambda result: result["expectation_config"]["meta"].get("place", 0)),
        "suite_name": name,
        "suite_parameters": {},
        "statistics": {
            "evaluated_expectations": len(results),
            "successful_expectations": good,
            "unsuccessful_expectations": len(results) - good,
            "success_percent": 100.0 * good / max(len(results), 1),
        },
        "meta": {**kept.documents[0]["meta"], "run_id": run},
        "id": None,
    }


def _shown(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result that says for which rows it holds, with values as markup: the library takes them for markup."""
    result = {**result, "result": _as_markup(result["result"])}
    config = result["expectation_config"]
    where = config["meta"].get("where")
    if where is None:
        return result
    kwargs = {**config["kwargs"], "row_condition": where, "condition_parser": "pandas"}
    return {**result, "expectation_config": {**config, "kwargs": kwargs}}


def _as_markup(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_markup(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_as_markup(inner) for inner in value]
    return html.escape(value, quote=False) if isinstance(value, str) else value


def _rendered(document: Mapping[str, Any]) -> str:
    """A page that loads nothing."""
    require_package("great_expectations", "a page of expectations", "nevermore-iceberg[checks]")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside Great Expectations are not the user's
        from great_expectations.core.expectation_validation_result import (
            ExpectationSuiteValidationResult,
            ExpectationSuiteValidationResultSchema,
        )
        from great_expectations.render.renderer import ValidationResultsPageRenderer
        from great_expectations.render.view import DefaultJinjaPageView

        loaded = ExpectationSuiteValidationResultSchema().load(dict(document))
        if not isinstance(loaded, ExpectationSuiteValidationResult):
            loaded = ExpectationSuiteValidationResult(**loaded)
        drawn = ValidationResultsPageRenderer(run_info_at_end=True).render(loaded)
        drawn.sections[0].content_blocks[0].subheader = None  # links to a page of the suite, which is not made
        view = DefaultJinjaPageView(custom_views_directory=TEMPLATE.parent)
        own = {"table": document["suite_name"], "passed": document["success"], "index": INDEX}
        return str(view.render(drawn, TEMPLATE.name, **own))
