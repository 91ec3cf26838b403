"""The reference is made from the code: every option, command, metric, property and public name is in it."""

import importlib.util
import inspect
import pkgutil
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import nevermore
from nevermore.pipelines.config.checks import TableChecksConfig
from nevermore.pipelines.config.project import parse
from nevermore.pipelines.config.published import PublishedConfig
from nevermore.pipelines.config.values import Section
from nevermore.pipelines.errors import PipelineError
from nevermore.scan_core import ScanError
from tests.support.page_blocks import page_blocks

DOCS = Path(__file__).parents[2] / "docs"


@cache
def reference() -> Any:
    """The module that makes the pages."""
    spec = importlib.util.spec_from_file_location("reference", DOCS / "hooks" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["reference"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_option_of_the_config_is_there_with_its_default() -> None:
    page = reference().configuration()
    bases = {PublishedConfig.__mro__[1], TableChecksConfig}
    assert subclasses(Section) - {Section} - bases == {*reference().SECTIONS.values()}
    for section in reference().SECTIONS.values():
        for name, field in section.model_fields.items():
            assert field.exclude or f"\n| `{field.alias or name}` |" in page, f"{section.__name__}.{name}"
    for line in (
        "| `commit_interval` | duration | `1m` |",
        "| `memory_limit_bytes` | size | `1GiB` |",
        "| `every` | duration or `off` | `1h` |",
        "| `partition_by` | list of text |  |",
        "| `webhook` | text | required |",
        "| `prune_pages` | `true` |",
    ):
        assert f"\n{line}" in page
    assert not re.search(r"\|\s*\|\n", page), "an option without a meaning"


@pytest.mark.each(12)
@pytest.mark.parametrize(
    ("page", "text", "row"),
    [
        ("../README.md", "`convert_after` (5 minutes)", "| `convert_after` | duration | `5m` |"),
        ("deletes.md", "`convert_after` (5 minutes)", "| `convert_after` | duration | `5m` |"),
        ("deletes.md", "| `converted` (default) |", "| `deletes` | `equality`, `converted`, `vectors` | `converted` |"),
        (
            "how-changes-are-applied.md",
            "**Dropped columns** stay in the mirror by default",
            "| `keep`, `drop` | `keep` |",
        ),
        ("faq.md", "a minute is the default (`commit_interval`)", "| `commit_interval` | duration | `1m` |"),
        ("faq.md", "(1 GiB)", "| `memory_limit_bytes` | size | `1GiB` |"),
        ("faq.md", "(2 GiB)", "| `memory_limit_bytes` | `2GiB` |"),
        ("scan-options.md", "`memory_limit_bytes`, 2 GiB by default", "| `memory_limit_bytes` | `2GiB` |"),
        ("expectations.md", "`frame_bytes` (256 MiB)", "| `frame_bytes` | size | `256MiB` |"),
        ("checks.md", "`checks: {memory_bytes: 512MiB}`", "| `memory_bytes` | size | `512MiB` |"),
        ("check-source.md", "`warn` (default)", "| `mirror_equals_source` | `block`, `warn`, `off` | `warn` |"),
        ("keep-a-mirror-fast.md", "`spark_above_bytes` (10 GiB)", "| `spark_above_bytes` | size | `10GiB` |"),
    ],
)
def test_a_default_that_a_page_states_is_that_of_the_code(page: str, text: str, row: str) -> None:
    assert text in " ".join((DOCS / page).read_text().split())
    assert row in reference().configuration()


def test_pages_stay_short() -> None:
    words = {
        page.stem: sum(bool(re.search(r"\w", word)) for word in page.read_text().split())
        for page in (DOCS.parent / "README.md", *DOCS.glob("*.md"))
    }
    assert {page: count for page, count in words.items() if count > 1_200} == {}
    assert sum(words.values()) <= 38_000
    assert len((DOCS.parent / "README.md").read_text().splitlines()) <= 120


def configs() -> list[Any]:
    """The configs in the documentation."""
    found = []
    for page in sorted(DOCS.glob("*.md")):
        for number, block in enumerate(page_blocks(page)):
            if block.language == "yaml" and (block.title.endswith("nevermore.yaml") or "\ntables:" in block.code):
                found.append(pytest.param(block.code, id=f"{page.stem}-{number}"))
    return found


@pytest.mark.each(9)
@pytest.mark.parametrize("text", configs())
def test_the_schema_accepts_the_configs_of_the_docs(text: str) -> None:
    jsonschema.validate(yaml.safe_load(text), reference().json_schema())


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("tables: {a.b: {source: {type: files, path: x}, kye: [id]}}", "kye"),
        ("tables: {a.b: {source: {type: files, path: x}, soft_delete: perhaps}}", "perhaps"),
        ("{tables: {}, spark: {cluster: x}}", "cluster"),
    ],
)
def test_the_schema_refuses_what_the_config_refuses(text: str, place: str) -> None:
    with pytest.raises(jsonschema.ValidationError, match=place):
        jsonschema.validate(yaml.safe_load(text), reference().json_schema())
    with pytest.raises(PipelineError, match=place):
        parse(text)


def test_every_command_and_option_is_there() -> None:
    import typer

    from nevermore.pipelines.cli.main import _application

    parts = dict(
        part.split("\n", 1) for part in re.split(r"^## nevermore ?", reference().commands(), flags=re.MULTILINE)[1:]
    )
    known: Any = typer.main.get_command(_application([]))
    assert {*parts} == {"", *known.commands}
    for name, command in known.commands.items():
        for given in command.params:
            assert given.hidden or given.opts[0] in parts[name] or "[OPTIONS]" in parts[name]
            assert not given.opts[0].startswith("--") or f"`{given.opts[0]}" in parts[name]


def test_metrics_have_the_names_that_prometheus_sees() -> None:
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.metrics import Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from prometheus_client import REGISTRY, generate_latest

    reader = PrometheusMetricReader()
    provider = MeterProvider([reader])
    meter = provider.get_meter("reference")
    instruments = reference().instruments()
    for name, kind, unit, _ in instruments:
        if kind == "counter":
            meter.create_counter(name, unit=unit).add(1)
        else:
            meter.create_observable_gauge(name, [lambda _: [Observation(1)]], unit=unit)
    served = {
        line.split(" ")[2] for line in generate_latest(REGISTRY).decode().splitlines() if line.startswith("# TYPE")
    }
    provider.shutdown()
    assert {reference().prometheus(name, kind, unit) for name, kind, unit, _ in instruments} <= served
    assert "nevermore_lag_seconds" in reference().metrics()


def test_every_format_fault_and_result_is_there() -> None:
    from dataclasses import fields

    from nevermore.pipelines.formats.options import ALIASES, OPTIONS
    from nevermore.pipelines.formats.registry import FORMATS
    from nevermore.pipelines.sources.file_options import FileOptions
    from tests.checks.faults import FAULTS

    page = reference().formats()
    words = set(re.findall(r"`([\w-]+)`|^## (\S+)", page, re.MULTILINE))
    options = {field.name for kind in (FileOptions, *OPTIONS.values()) for field in fields(kind)}
    assert {*FORMATS, *ALIASES, *options} <= {word for found in words for word in found}
    assert [fault.what for fault in FAULTS if f"| {fault.what} |" not in reference().faults()] == []
    assert "| Iceberg Java |" in reference().results()


def test_every_property_is_explained() -> None:
    named = reference().named_properties()
    assert {"nevermore.position", "nevermore.key", "nevermore.source.NAME", "nevermore.soft_delete"} <= {*named}


def test_public_names_are_on_the_page_of_the_api() -> None:
    described = set()
    for name in re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(), re.MULTILINE):
        found = pkgutil.resolve_name(name)
        described |= {id(value) for value in (vars(found).values() if inspect.ismodule(found) else [found])}
    assert [name for name in nevermore.__all__ if id(getattr(nevermore, name)) not in described] == []


def subclasses(kind: type[Any]) -> set[type[Any]]:
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def test_exit_codes_are_those_of_the_errors() -> None:
    from nevermore.pipelines.ingest import report

    table = (DOCS / "promises.md").read_text().partition("## Exit codes")[2]
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    used = {kind.exit_code for kind in subclasses(PipelineError) | subclasses(ScanError)}
    assert codes == used | {report.DONE, report.FAILED, report.QUARANTINED, 130}
