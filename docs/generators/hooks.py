"""Hooks of mkdocs: pages made from the program and from files of the repository."""

from __future__ import annotations

from pathlib import Path

from command_line_help import command_line_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from module_map import module_map
from repository import COPIED, PICTURES, page_of, with_links_of_site

ROOT = Path(__file__).parents[2]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that are not in ``docs/`` themselves."""
    made = {"reference/command-line.md": command_line_page()}
    made["developers/modules.md"] = module_map(ROOT)
    made |= {page: page_of(ROOT, source) for page, source in COPIED.items()}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    for page, source in PICTURES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn the links of a page in ``docs/`` to the site. They also work in the repository."""
    if page.file.src_uri in COPIED:
        return markdown
    return with_links_of_site(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)
