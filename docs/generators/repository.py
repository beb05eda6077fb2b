"""Pages of the site that are files of the repository, and links to such files."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

# Pages of the site by the files that they are copied from.
COPIED = {
    "changelog.md": "CHANGELOG.md",
    "developers/architecture.md": "ARCHITECTURE.md",
    "developers/contributing.md": "CONTRIBUTING.md",
    "developers/security.md": "SECURITY.md",
    "reference/examples.md": "examples/README.md",
    "reference/machines.md": "machines/README.md",
    "reference/networks.md": "networks/README.md",
}
PICTURES = {"cells-unet.png": "networks/cells-unet.png"}

# Other names that links use for files on the site.
ALSO = {
    "README.md": "index.md",
    "bench/results/README.md": "performance/index.md",
    "examples/": "reference/examples.md",
    "machines/": "reference/machines.md",
    "networks/": "reference/networks.md",
}

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def page_of(root: Path, source: str) -> str:
    """Return a file's text as a page of the site.

    Links to other files on the site lead to their pages. Links to files that are not on the site
    become plain text.

    Args:
        root: the repository.
        source: the file, relative to it.
    """
    page = next(page for page, file in COPIED.items() if file == source)
    return with_links_of_site((root / source).read_text(encoding="utf-8"), source, page)


def with_links_of_site(text: str, source: str, page: str) -> str:
    """Return a text whose links to files of the repository lead to pages of the site.

    Args:
        text: the text of a page.
        source: the file that it is in, relative to the repository.
        page: the page, relative to the site.
    """
    for picture, file in PICTURES.items():
        text = text.replace(f"](../{file})", f"]({picture})")
    return LINK.sub(lambda link: _turned(link, source, page), text)


def _turned(link: re.Match[str], source: str, page: str) -> str:
    text, target, anchor = link[1], link[2], link[3] or ""
    if "://" in target:
        return link[0]
    slash = "/" if target.endswith("/") else ""
    file = os.path.normpath(PurePosixPath(source).parent / target) + slash
    found = ALSO.get(file) or next((p for p, f in COPIED.items() if f == file), None)
    if found is None and file.startswith("docs/"):
        found = file.removeprefix("docs/")
    if found is None:
        return text
    return f"[{text}]({os.path.relpath(found, PurePosixPath(page).parent)}{anchor})"
