"""Hooks of mkdocs: pages made from the program, from records and from files of the repository."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parents[2]))  # for bench, which is not installed

from command_line_help import command_line_page
from module_map import module_map
from performance import RECORDS, record_pages, with_tables
from repository import COPIED, PICTURES, page_of

ROOT = Path(__file__).parents[2]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that are not in ``docs/`` themselves."""
    made = {"reference/command-line.md": command_line_page(), **record_pages(RECORDS)}
    made["developers/modules.md"] = module_map(ROOT)
    made |= {page: page_of(ROOT, source) for page, source in COPIED.items()}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    for page, source in PICTURES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put tables of records in the place of their names."""
    return with_tables(markdown, RECORDS)
