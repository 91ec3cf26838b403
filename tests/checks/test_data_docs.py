"""`nevermore docs`: pages of expectations that load nothing, with the values that did not meet them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nevermore.assets.metadata import labels
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import Config, load
from tests.assets.test_browser import FLAGS, chromium
from tests.pipelines.project import event, product

EXPECTED = [
    {"expect_column_values_to_be_in_set": {"column": "name", "value_set": ["a", "b"]}},
    {
        "expect_column_values_to_match_regex": {"column": "name", "regex": "^[a-z]"},
        "where": "id > 1",
        "severity": "warn",
    },
]


def project(folder: Path, **options: Any) -> Config:
    """Two mirrors, one of which has expectations, and a row that does not meet them."""
    (folder / "landing").mkdir()
    lines = [event("c", product(1)), event("c", product(2, "<b>&Z"))]
    (folder / "landing" / "1.jsonl").write_text("".join(f"{line}\n" for line in lines))
    source = {"type": "files", "path": "landing/*.jsonl", "format": "debezium-json"}
    tables = {
        "shop.products": {"source": source, "key": ["id"], "checks": {"expectations": EXPECTED}},
        "shop.plain": {"source": source, "key": ["id"], "checks": {"from_schema": "off"}},
    }
    (folder / "nevermore.yaml").write_text(yaml.safe_dump({"tables": tables, **options}))
    return load(folder / "nevermore.yaml")


def nevermore(config: Config, *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--config", str(config.path)])
    return int(ended.value.code or 0)


def test_pages_show_what_failed_and_load_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = project(tmp_path)
    folder = tmp_path / "data_docs"
    assert nevermore(config, "ingest", "shop.products") == 0
    assert nevermore(config, "docs") == 0
    assert "not checked yet" in capsys.readouterr().out
    assert "not checked yet: nevermore check shop.products" in (folder / "index.html").read_text()
    assert nevermore(config, "check", "shop.products") == 1
    capsys.readouterr()
    assert nevermore(config, "docs", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    (one,) = told["tables"]
    assert (one["table"], one["page"], one["passed"]) == ("shop.products", "shop.products.html", False)
    page = (folder / "shop.products.html").read_text()
    assert "&lt;b&gt;&amp;Z" in page
    assert "<b>&Z" not in page
    assert "id &gt; 1" in page or "id > 1" in page
    for text in (page, (folder / "index.html").read_text()):
        assert "http://" not in text
        assert "https://" not in text
    assert "href='shop.products.html'" in (folder / "index.html").read_text()


def test_the_folder_is_named_by_config_or_option_and_is_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = project(tmp_path, docs={"folder": "pages"})
    assert nevermore(config, "ingest") == 0
    assert nevermore(config, "docs") == 0
    assert (tmp_path / "pages" / "index.html").exists()
    (tmp_path / "file").write_text("")
    assert nevermore(config, "docs", "--output", str(tmp_path / "file")) == 2
    assert "is a file" in capsys.readouterr().err
    assert nevermore(config, "docs", "shop.unknown") == 2


def test_assets_link_to_their_pages(tmp_path: Path) -> None:
    local = labels(project(tmp_path), "shop.products", "mirror", "shop.products", "A mirror.")["metadata"]["data docs"]
    assert local.path == str(tmp_path / "data_docs" / "shop.products.html")
    (tmp_path / "served").mkdir()
    config = project(tmp_path / "served", docs={"url": "https://data.example.com/docs/"})
    served = labels(config, "shop.products", "mirror", "shop.products", "A mirror.")["metadata"]["data docs"]
    assert served.url == "https://data.example.com/docs/shop.products.html"
    assert "data docs" not in labels(config, "shop.plain", "mirror", "shop.plain", "A mirror.")["metadata"]


@pytest.mark.slow
def test_the_pages_in_a_browser(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    config = project(tmp_path)
    nevermore(config, "ingest", "shop.products")
    nevermore(config, "check", "shop.products")
    nevermore(config, "docs")
    path = chromium()
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=path, args=FLAGS)
        view = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
        asked, errors = [], []
        view.on("request", lambda request: asked.append(request.url))
        view.on("pageerror", lambda error: errors.append(str(error)))
        view.goto(f"file://{tmp_path}/data_docs/index.html")
        number = view.locator("td.num").first.bounding_box()
        assert number is not None
        assert number["x"] + number["width"] <= 390  # visible without scrolling the table
        view.click("text=shop.products")
        assert view.title() == "shop.products"
        assert view.locator("text=values must never be null").first.is_visible()
        view.click("text=Failed Only")
        assert not view.locator("text=values must never be null").first.is_visible()
        assert view.locator("td:has-text('<b>&Z')").first.is_visible()
        assert view.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert [url for url in asked if not url.startswith("file:")] == []
        assert errors == []
        browser.close()
