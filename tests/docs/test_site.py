"""The documentation as a site: every page is built as its source means it."""

import html
import os
import re
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urldefrag

import pytest

from tests.assets.test_browser import FLAGS, chromium
from tests.support.page_blocks import page_blocks

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted((REPOSITORY / "docs").glob("*.md"))
MARKUP = re.compile(r"[`*_]|\[([^\]]*)\]\([^)]*\)")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    pytest.importorskip("mkdocs", reason="make docs installs it")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def words(text: str) -> str:
    return " ".join(html.unescape(text).split())


def built(site: Path, page: Path) -> str:
    """The content of a built page, without navigation."""
    (content,) = re.findall(r"<article.*?</article>", (site / f"{page.stem}.html").read_text(), re.DOTALL)
    return str(content)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_has_the_headings_blocks_and_pictures_of_its_source(site: Path, page: Path) -> None:
    source, content = page.read_text(), built(site, page)
    assert "```" not in content
    text = re.sub(r"^ *```.*?^ *```$", "", source, flags=re.MULTILINE | re.DOTALL)
    wanted = [words(MARKUP.sub(r"\1", title)) for title in re.findall(r"^#+ (.*)", text, re.MULTILINE)]
    parts = re.findall(r"<h\d[^>]*>(.*?)</h\d>", content, re.DOTALL)
    titles = [words(re.sub(r"<a class=\"headerlink.*?</a>|<[^>]+>", "", part)).replace("_", "") for part in parts]
    assert [title for title in wanted if title not in titles] == []
    blocks = page_blocks(page)
    assert (
        len(re.findall(r'<div class="[^"]*\bhighlight"', content))
        >= len(blocks)
        == len(re.findall(r"^ *```\w", source, re.MULTILINE))
    )
    assert content.count('<span class="filename">') == sum(bool(block.title) for block in blocks)
    pictures = re.findall(r"<img[^>]*? src=\"([^\"]+)\"", content)
    assert len(pictures) == len(re.findall(r"!\[", text))
    assert [picture for picture in pictures if not (site / picture).is_file()] == []


def test_every_page_is_in_the_navigation(site: Path) -> None:
    navigation = REPOSITORY.joinpath("mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = {Path(name).with_suffix(".html") for name in re.findall(r": (\S+)$", navigation, re.MULTILINE)}
    assert {page.relative_to(site) for page in site.rglob("*.html")} == named | {Path("404.html")}


def test_every_link_of_a_page_leads_to_a_file_and_a_place_in_it(site: Path) -> None:
    places = {page: {*re.findall(r"\bid=\"([^\"]+)", page.read_text())} for page in site.glob("*.html")}
    dead = []
    for page in places.keys() - {site / "404.html"}:
        for link in map(html.unescape, re.findall(r"\b(?:href|src)=\"([^\"]+)", page.read_text())):
            name, place = urldefrag(link)
            target = (page.parent / unquote(name)).resolve() if name else page
            if not re.match(r"[a-z]+:", link) and not (target.is_file() and (not place or place in places[target])):
                dead.append((page.name, link))
    assert sorted(dead) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("width", [400, 1200])
def test_every_page_loads_in_a_browser_with_its_pictures(site: Path, width: int) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium(), args=FLAGS)
        view = browser.new_page(viewport={"width": width, "height": 900})
        failed: list[str] = []
        view.on("pageerror", lambda error: failed.append(str(error)))
        for page in sorted(site.glob("*.html")):
            view.goto(page.as_uri(), wait_until="load", timeout=120_000)
            broken = view.evaluate("[...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src)")
            wide = view.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert (broken, wide, failed) == ([], 0, []), page.name
        browser.close()


QUESTIONS = {
    "can it read my Flink table in S3 from pandas?": "faq.html#can-it-read-my-flink-table-in-s3-from-pandas",
    "what happens to a column that is dropped?": "how-changes-are-applied.html#what-happens-to-a-column-that-is",
    "what does exit code 3 mean?": "promises.html#exit-codes",
    "how do I undo a wrong ingest?": "recover.html",
    "why is my check red?": "red-check.html",
    "does it need Java?": "faq.html#does-it-need-java-spark-or-dagster",
    "how do I mirror RDS PostgreSQL?": "postgresql.html#amazon-rds-and-aurora",
    "how do I delete a person's data?": "erase.html",
    "which engines can read my mirror?": "compatibility.html#who-can-read-my-mirror",
    "how much memory does it need?": "scan-options.html#how-much-memory-does-a-scan-need",
    "how do I upsert a DataFrame?": "faq.html#how-do-i-upsert-a-dataframe",
    "why is my mirror behind?": "faq.html#why-is-my-mirror-behind",
    "how do I retry events in quarantine?": "recover.html#retry-events-in-quarantine",
    "can I run it on Kubernetes?": "spark-cluster.html#kubernetes",
    "how do I get an alert when a check fails?": "dagster-runs.html#alerts",
    "can I query it with SQL?": "faq.html#can-i-query-it-with-sql",
    "how do I add it to my Dagster project?": "dagster.html",
    "what do I do when the disk is full?": "troubleshooting.html#when-a-disk-is-full",
    "how do I mirror MySQL?": "mysql.html",
    "can I use a Glue catalog?": "object-stores.html#aws-glue",
    "how do I write my own expectations?": "expectations.html",
    "how do I migrate from Debezium Server?": "migrating.html",
    "how do I move a warehouse?": "faq.html#how-do-i-move-a-warehouse",
    "can two writers write one mirror?": "faq.html#can-two-writers",
    "what privileges does the MySQL user need?": "mysql.html#what-to-set-on-the-server",
    "how do I add a table later?": "faq.html#how-do-i-mirror-only-some-tables",
    "does it work on Windows or macOS?": "faq.html#does-it-run-on-windows-or-macos",
    "is it production ready?": "faq.html#does-it-run-on-windows-or-macos",
    "how do I run it every hour with Airflow?": "faq.html#how-do-i-run-it-with-cron-or-airflow",
    "how do I see yesterday's rows?": "faq.html#how-do-i-see-yesterdays-rows",
    "how do I leave out a column with personal data?": "faq.html#how-do-i-leave-out-a-column",
    "what happens when my PostgreSQL fails over?": "faq.html#what-happens-after-a-failover-of-postgresql",
    "can it read Delta tables?": "faq.html#can-it-read-delta-lake-or-hudi-tables",
    "does it support Oracle or SQL Server?": "faq.html#does-it-support-oracle",
    "how do I write to S3?": "object-stores.html#read-from-s3-and-write-to-s3",
    "how do I get rid of small files?": "faq.html#how-often-can-it-commit",
    "how do I connect Trino?": "faq.html#which-engines-can-read-my-mirror",
    "which Python versions are supported?": "faq.html#does-it-need-java-spark-or-dagster-which-python-versions",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_served", [False, True], ids=["as a file", "served"])
def test_questions_are_answered_by_one_search(site: Path, *, is_served: bool) -> None:
    from playwright.sync_api import sync_playwright

    handler = partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as started:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/" if is_served else f"{site.as_uri()}/"
        browser = started.chromium.launch(executable_path=chromium(), args=FLAGS)
        view = browser.new_page(viewport={"width": 1400, "height": 900})
        asked: list[str] = []
        view.on("request", lambda request: asked.append(request.url))
        view.goto(f"{address}tutorial.html", wait_until="load", timeout=120_000)
        box = view.locator(".md-search__input")
        box.click()
        for question, answer in list(QUESTIONS.items())[:: 9 if is_served else 1]:
            box.fill("")
            view.keyboard.type(question)
            pages = "[...document.querySelectorAll('.md-search-result__item')].slice(0, 3)"
            found = f"{pages}.flatMap(page => [...page.querySelectorAll('a')]).map(a => a.href)"
            wanted = f"{found}.some(address => address.replace(/[?][^#]*/, '').startsWith({address + answer!r}))"
            view.wait_for_function(wanted, timeout=120_000)
        assert [url for url in asked if not url.startswith((address, "blob:", "data:"))] == []
        browser.close()
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""
