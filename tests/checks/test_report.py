"""`nevermore report` and `explain --html`: whole pages, without scripts, files from elsewhere, or markup from the data."""

import json
import re
import shutil
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nevermore import scan_core
from nevermore.pipelines.cli.main import main
from tests.pipelines.project import Project, event, product

HOSTILE = "<script>alert(1)</script>"
VOID = {"meta", "circle", "polyline", "img", "br"}


class _Checked(HTMLParser):
    """Collects the tags of a page, and tells which are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> str:
    found = _Checked(text)
    assert found.open == []
    assert not found.tags & {"script", "link", "img", "iframe"}
    assert all(link.startswith("#") for link in found.links)
    assert "@import" not in text
    assert "url(" not in text
    return text


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("report"))
    long = {"expect_column_value_lengths_to_equal": {"column": "name", "value": 1}, "severity": "warn"}
    made.write({"shop.products": {"key": ["id"], "max_quarantine_ratio": 1.0, "checks": {"expectations": [long]}}})
    made.land("1.jsonl", [event("c", product(i, HOSTILE if i in {3, 40} else "a")) for i in range(1, 41)])
    made.run()
    broken = json.dumps(
        {"op": "c", "after": {"id": HOSTILE, "name": "b"}, "source": {"db": "shop", "table": "products"}}
    )
    made.land("2.jsonl", [*(event("d", product(i)) for i in range(1, 11)), broken])
    made.run()
    config = made.folder / "nevermore.yaml"
    published = "published:\n  shop.names:\n    sql: select name, count(*) as n from shop.products group by name\n"
    config.write_text(config.read_text() + published)
    return made


def test_report_shows_state_events_quarantine_and_kept_checks(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, page = str(project.folder / "nevermore.yaml"), tmp_path / "new" / "page.html"
    assert run("report", "--config", config, "-o", str(page)) == 0
    before = checked(page.read_text())
    assert "this snapshot has not been checked yet" in before
    assert "never been published" in before
    assert run("check", "shop.products", "--config", config) == 0
    capsys.readouterr()
    assert run("report", "shop.products", "--config", config, "-o", str(page), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(page)}
    text = checked(page.read_text())
    assert re.search(r"<b>30</b><span>rows alive", text)
    assert re.search(r"<b>1</b><span>in quarantine", text)
    for kind, number in (("create", 40), ("delete", 10)):
        assert re.search(rf"<span>{kind}</span>.*?<span>{number}</span>", text)
    assert "mirror_equals_reference" in text
    assert "FAILED" not in text
    # an expectation that only warns is one of the checks
    assert re.search(
        r"<td><span class=fail>WARNING</span></td><td>should_meet_expectations</td><td>1 expectation,", text
    )
    assert "shop.names" in text  # reads the mirror
    assert HOSTILE not in text
    assert [path.name for path in page.parent.iterdir()] == ["page.html"]


def test_report_of_a_damaged_table_tells_what_is_wrong_and_shows_the_rest(project: Project, tmp_path: Path) -> None:
    table = scan_core.open_table(project.table("shop.products"))
    file = Path(table.scan().plan().tasks[0].data_file.path.removeprefix("file://"))
    kept, page = file.read_bytes(), tmp_path / "page.html"
    try:
        file.write_bytes(b"PAR1" + b"\0" * 40)
        config = str(project.folder / "nevermore.yaml")
        assert run("report", "shop.products", "--config", config, "-o", str(page)) == 0
    finally:
        file.write_bytes(kept)
    text = checked(page.read_text())
    assert re.search(r"<p class=fail>[^<]*parquet", text)
    assert "Quarantine" in text


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["report", "shop.nothing"], "shop.nothing", 2),
        (["report", "-o", "."], "not a regular file", 1),
        (["explain", "shop.products", "--html", "."], "not a regular file", 1),
        (["explain", "shop.products", "--where", "nothing > 1", "--html", "x.html"], "nothing", 2),
    ],
)
def test_pages_that_cannot_be_made_are_one_message(
    project: Project, capsys: pytest.CaptureFixture[str], words: list[str], message: str, code: int
) -> None:
    assert run(*words, "--config", str(project.folder / "nevermore.yaml"), "--json") == code
    found = capsys.readouterr()
    assert found.out == ""
    assert message in json.loads(found.err)["error"]


def test_explain_draws_the_files_and_what_skipped_them(project: Project, tmp_path: Path) -> None:
    config, page = str(project.folder / "nevermore.yaml"), tmp_path / "plan.html"
    assert run("explain", "shop.products", "--where", "id > 1000", "--config", config, "--html", str(page)) == 0
    text = checked(page.read_text())
    assert "0 of 1 listed" in text
    assert "skipped by the filter, from the least and greatest values" in text


def test_notebooks_show_tables_scans_and_plans_escaped(project: Project) -> None:
    table = scan_core.open_table(project.table("shop.products"))
    scan = table.scan()
    for shown in (table, scan.where(f"name = '{HOSTILE}' or id > 20"), scan.where(f"name <> '{HOSTILE}'").plan()):
        text = checked(shown._repr_html_())
        assert HOSTILE not in text
    assert scan.limit(3)._repr_html_().count("<tr>") == 4
    assert "40" in table._repr_html_()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_report_fits_phones_and_follows_the_theme(project: Project, tmp_path: Path, scheme: str, width: int) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("chromium is missing")
    run("report", "--config", str(project.folder / "nevermore.yaml"), "-o", str(tmp_path / "page.html"))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with playwright.sync_playwright() as started:
            browser = started.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
            tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            asked: list[str] = []
            tab.on("request", lambda request: asked.append(request.url))
            tab.goto(f"http://127.0.0.1:{server.server_port}/page.html")
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
            assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 29)"}[scheme]
            assert {url for url in asked if not url.endswith("favicon.ico")} == {tab.url}
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
