"""The site of the documents: every page is in its navigation, every word in its reference, and it builds strictly."""

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import meshax as mx

ROOT = Path(__file__).parents[1]
SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
NAVIGATION = re.findall(r"^ +- (?:[\w ]+: )?(\S+\.md)$", SETTINGS.partition("\nnav:\n")[2], re.MULTILINE)
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
FETCHED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>")


def test_the_navigation_names_every_page_once():
    folders = ("docs/**/*.md", "benchmarks/results/*.md", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
    pages = {path.relative_to(ROOT).as_posix() for folder in folders for path in ROOT.glob(folder)}
    assert Counter(NAVIGATION) == Counter(pages)


def described(page):
    """Yields what a page of the reference takes from docstrings, as dotted names."""
    return re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)


def source_of(name):
    """The file of a module, or of the module that has a name; and the name in it, if it is not the module."""
    path = ROOT / "src" / Path(*name.split("."))
    if (path / "__init__.py").exists():
        return path / "__init__.py", ""
    if path.with_suffix(".py").exists():
        return path.with_suffix(".py"), ""
    module, _, member = name.rpartition(".")
    return source_of(module)[0], member


def definitions(path):
    """The classes and functions of a module, and what it imports, by name."""
    names = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names[node.name] = ast.get_docstring(node)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: "" for alias in node.names}
    return names


@pytest.mark.parametrize("name", [name for page in REFERENCE for name in described(page)])
def test_the_reference_describes_what_exists(name):
    path, member = source_of(name)
    assert not member or member in definitions(path)


def test_the_reference_has_every_word():
    page = ROOT / "docs" / "reference" / "language.md"
    words = set(re.findall(r"`mx\.(\w+)`", page.read_text(encoding="utf-8"))) | {"random"}
    for name in described(page):
        path, member = source_of(name)
        words |= {member} if member else {word for word, docstring in definitions(path).items() if docstring}
    assert not set(mx.__all__) - words


@pytest.mark.parametrize("package", ["nn", "optim", "data", "train", "decode", "weights"])
def test_the_reference_has_every_package(package):
    names = described(ROOT / "docs" / "reference" / f"{package}.md")
    assert names and all(f"{name}.".startswith(f"meshax.{package}.") for name in names)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_it_builds_strictly_and_fetches_nothing(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) == len(NAVIGATION) + 1  # and the one that says that there is no such page
    assert not [found for page in pages for found in FETCHED.findall(page.read_text(encoding="utf-8"))]
    reference = (tmp_path / "docs" / "reference" / "nn.html").read_text(encoding="utf-8")
    assert "meshax.nn.Attention.init" in reference
    assert (tmp_path / "assets" / "stylesheets").is_dir()
