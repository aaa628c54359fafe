"""MkDocs hook: takes the navigation from the index, adds the pages that stand beside `docs/`, resolves links out of it.

The index `docs/README.md` is the one list of pages: its headings are the sections of the site. A page that it does not
link to is reported by MkDocs as missing from the navigation.

`README.md`, `ARCHITECTURE.md`, `CONTRIBUTING.md`, `CHANGELOG.md` and `SECURITY.md` stand at the root of the repository,
where people and forges look for them. The site has them as `project/…`. A link to any other file of the repository
becomes its name, because the site does not contain the sources.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)\s]+)\)")
FENCED = re.compile(r"(```.*?```)", re.DOTALL)


def on_config(config: Any) -> Any:
    """Set the navigation: the index, its sections, and the pages of the root."""
    sections = navigation((ROOT / "docs/README.md").read_text(encoding="utf-8"))
    listed = {page for section in sections for pages in section.values() for page in pages}
    rest = [site_path(name) for name in ROOT_PAGES if (ROOT / name).exists() and site_path(name) not in listed]
    config.nav = ["README.md", *sections, *([{"Project": rest}] if rest else [])]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the repository's root."""
    for name in ROOT_PAGES:
        if (ROOT / name).exists():
            content = (ROOT / name).read_text(encoding="utf-8")
            files.append(File.generated(config, site_path(name), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of one page."""
    return rewritten(markdown, page.file.src_uri)


def navigation(index: str) -> list[dict[str, list[str]]]:
    """List the sections of an index with the pages that each is the first to link to."""
    seen: set[str] = set()
    sections = []
    for text in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title = text.partition("\n")[0].partition(":")[0]
        targets = [match["target"].partition("#")[0] for match in LINK.finditer(text) if "://" not in match["target"]]
        pages = [site_path(Path(target).name) if target.startswith("../") else target for target in targets]
        pages = [page for page in dict.fromkeys(pages) if page.endswith(".md") and page not in seen]
        seen.update(pages)
        sections.append({title: pages})
    return sections


def site_path(name: str) -> str:
    """Name the page of the site that shows a page of the root."""
    return f"project/{'overview.md' if name == 'README.md' else name.lower()}"


def rewritten(markdown: str, source: str) -> str:
    """Rewrite links for the site. ``source`` is the page's path in it. MkDocs reports those that lead nowhere."""
    repository_path = {site_path(name): name for name in ROOT_PAGES}.get(source, f"docs/{source}")

    def resolve(match: re.Match[str]) -> str:
        target, hash_, anchor = match["target"].partition("#")
        if not target or "://" in target:
            return match[0]
        path = os.path.normpath(PurePosixPath(repository_path).parent / target)
        if path in ROOT_PAGES:
            inside = site_path(path)
        elif path.startswith("docs/"):
            inside = path.removeprefix("docs/")
        else:
            return match["text"].lstrip("!")[1:-1]
        return f"{match['text']}({os.path.relpath(inside, PurePosixPath(source).parent)}{hash_}{anchor})"

    # Odd parts are code blocks.
    parts = FENCED.split(markdown)
    return "".join(part if number % 2 else LINK.sub(resolve, part) for number, part in enumerate(parts))
