"""The site of the documents: whole, without a warning, and with nothing that is fetched from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from tests.docs.site_pages import BESIDE, DOCS, ROOT, as_on_site
from tests.support.browser import open_browser
from tests.support.require import require_tool

TAGS = ("li", "tr", "img")
built = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make site` makes it; skips where the extra `site` is not installed."""
    mkdocs = require_tool("mkdocs", str(Path(sys.executable).parent))
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [mkdocs, "build", "--strict", "--site-dir", folder],  # with --quiet it would count no warnings
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def pages() -> Iterator[tuple[str, Path]]:
    """Each page's name on the site, and the file that it is."""
    yield from BESIDE.items()
    yield from ((str(file.relative_to(DOCS)), file) for file in DOCS.rglob("*.md"))


def named(entry: object) -> list[str]:
    """The pages in a part of the navigation."""
    match entry:
        case dict():
            return [name for each in entry.values() for name in named(each)]
        case list():
            return [name for each in entry for name in named(each)]
    return [str(entry)]


def test_every_page_is_in_the_navigation_once() -> None:
    found = named(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(found) == sorted(name for name, _ in pages())


def test_links_lead_to_pages_of_the_site_or_say_where_in_the_repository() -> None:
    text = "[a](docs/tasks/lint.md#x) [b](CONTRIBUTING.md) ![c](docs/pictures/house.svg) [d](https://e.org/)"
    ours = "[a](tasks/lint.md#x) [b](contributing.md) ![c](pictures/house.svg) [d](https://e.org/)"
    assert as_on_site(text, ROOT / "README.md", DOCS / "index.md") == ours
    page = DOCS / "reference" / "failures.md"
    text = "[a row](../../manifests/README.md) [`README.md`](../../manifests/README.md) [home](../../README.md)"
    ours = "a row (`manifests/README.md` of the repository) `manifests/README.md` [home](../index.md)"
    assert as_on_site(text, page, page) == ours
    code = "```sh\necho [x](../../y)\n```\n"
    assert as_on_site(code, page, page) == code


@built
def test_pages_have_the_lists_tables_and_pictures_that_github_shows(site: Path) -> None:
    """Two kinds of Markdown differ in what is a list."""
    github = MarkdownIt("commonmark").enable("table")

    def counted(html: str) -> Counter[str]:
        return Counter(tag for tag in re.findall(r"<(\w+)", html) if tag in TAGS)

    for name, file in pages():
        html = (site / name.replace("README", "index")).with_suffix(".html").read_text()
        article = html.partition("<article")[2].partition("</article>")[0]
        assert counted(article) == counted(github.render(file.read_text())), name


@built
def test_a_reader_fetches_nothing_from_elsewhere(site: Path) -> None:
    with open_browser() as page:
        for name in ("index.html", "develop/architecture.html"):
            page.open(site / name, width=400, dark=True)
            ours = (site.as_uri(), "data:", "blob:")
            assert [address for address in page.requests if not address.startswith(ours)] == []
            assert page.evaluate("document.documentElement.scrollWidth") == 400
