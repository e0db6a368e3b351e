"""What the site of the documents is made of: a hook of mkdocs, named in mkdocs.yml.

The site has the folders of the repository, so that every link of a document is right in both. Its pages are the README
and its neighbours, all of docs/, and what was measured; files that a page links to come along as they are.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/results/*.md", "docs/**/*.md")
LINK = re.compile(r"\]\(([^)#:\s]+)")  # of a file, not of the web


def pages() -> list[Path]:
    return [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]


def linked(page: Path) -> Iterator[Path]:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            yield path


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs: of the files it has found, those of the theme stay."""
    paths = dict.fromkeys([*pages(), *(path for page in pages() for path in linked(page))])
    ours = [File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)) for path in paths]
    return Files([*(file for file in files if file.src_dir != config.docs_dir), *ours])
