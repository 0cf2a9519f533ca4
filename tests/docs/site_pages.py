"""What the site of the documents has beside docs/, as hooks of mkdocs (`hooks` in mkdocs.yml).

README, CONTRIBUTING and CHANGELOG are pages of it, too. What else of the repository a page leads to is not on
the site: there its path stands in the place of the link.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # only who has the extra `site` has mkdocs, and a test of links uses this module
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BESIDE = {
    "index.md": ROOT / "README.md",
    "contributing.md": ROOT / "CONTRIBUTING.md",
    "changelog.md": ROOT / "CHANGELOG.md",
}
"""Pages by their name on the site, and the files that they are."""
PAGE_OF = {file: DOCS / name for name, file in BESIDE.items()}
FENCED = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^)\s]+)\)")


def slug(title: str, separator: str = "-") -> str:
    """The anchor of a heading, as GitHub names it: one link leads there and on the site."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for name, file in BESIDE.items():
        files.append(File.generated(config, name, content=file.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    name = page.file.src_uri
    return as_on_site(markdown, BESIDE.get(name, DOCS / name), DOCS / name)


def as_on_site(markdown: str, file: Path, page: Path) -> str:
    """The text of `file` with its links as they are on the site, where it is `page`."""
    outside_code = FENCED.split(markdown)
    outside_code[::2] = [LINK.sub(_link_on_site(file, page), text) for text in outside_code[::2]]
    return "".join(outside_code)


def _link_on_site(file: Path, page: Path) -> Callable[[re.Match[str]], str]:
    def render(link: re.Match[str]) -> str:
        picture, text, address = link.groups()
        name, _, anchor = address.partition("#")
        if not name or re.match(r"[a-z]+:", address):
            return link[0]
        target = (file.parent / name).resolve()
        target = PAGE_OF.get(target, target)
        if not target.is_relative_to(DOCS):
            path = f"`{target.relative_to(ROOT)}`"
            return (
                path
                if text.strip("`") in (path.strip("`"), target.name)
                else f"{text} ({path} of the repository)"
            )
        leads = os.path.relpath(target, page.parent) + ("#" + anchor if anchor else "")
        return f"{picture}[{text}]({leads})"

    return render
