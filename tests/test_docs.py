"""What the documents show works: their programs run, their outputs are real, their commands exist.

The python blocks of a document run in order, as one program in a fresh process. The lines of a text block are lines
that the document's program prints; "..." stands for lines left out.
"""

import contextlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

import meshax
import meshax.cli.commands  # from here on every command is a subclass of Command
from extent import some
from meshax.cli import main
from meshax.cli.options import Command

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").rglob("*.md"))]
LONG = ("decode.md", "five_layouts.md", "train_a_language_model.md", "translate.md")  # pages whose programs take long
BESIDE = [*sorted(ROOT.glob("C*.md")), *sorted((ROOT / "benchmarks").rglob("*.md"))]  # read, but nothing in them is run
TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)

RUN = """
import json, sys, traceback
path, blocks = json.load(sys.stdin)
names = {"__name__": "__main__"}
for line, code in blocks:
    try:
        exec(compile("\\n" * (line - 1) + code, path, "exec"), names)  # the lines of errors are the document's
    except Exception:
        traceback.print_exc()
        sys.exit(f"{path}:{line}: this block does not run")
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a document, and the line of the document where its text begins."""

    language: str
    line: int
    text: str


def blocks_of(document, language):
    text = document.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*).*\n((?:.*\n)*?)^```$", text, re.MULTILINE):
        if match[1] == language:
            yield Block(match[1], text.count("\n", 0, match.start(2)) + 1, match[2])


def run(document):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    # As users have it: one device, unless the document's program asks for more.
    flags = environment.get("XLA_FLAGS", "")
    environment["XLA_FLAGS"] = re.sub(r"--xla_force_host_platform_device_count=\d+", "", flags)
    blocks = [(block.line, block.text) for block in blocks_of(document, "python")]
    given = json.dumps([str(document), blocks])
    command = [sys.executable, "-W", "error", "-c", RUN]
    return subprocess.run(command, input=given, env=environment, capture_output=True, text=True, timeout=300)


def plain(line):
    """A line without frames, spacing, and the place in a file, which is another where the program is pasted."""
    return " ".join(re.sub(r"\S+\.(py|md):\d+|[^\w\s.,:+=()\[\]-]", " ", line).split())


def missing_lines(document, printed):
    """The lines of text blocks that the program did not print."""
    known = {plain(line) for line in printed.splitlines()}
    for block in blocks_of(document, "text"):
        for number, line in enumerate(block.text.splitlines(), block.line):
            if plain(line) not in known | {"", "..."}:
                yield f"{document.name}:{number}: not printed: {line}"


def unknown_commands(document):
    """The commands that name something that does not exist: all lines of bash blocks, and our own elsewhere."""
    bash = [
        (number, line)
        for block in blocks_of(document, "bash")
        for number, line in enumerate(block.text.splitlines(), block.line)
    ]
    lines = enumerate(document.read_text(encoding="utf-8").splitlines(), 1)
    ours = [(number, match[1]) for number, line in lines if (match := re.match(r"(?:    |\$ )(meshax .*)", line))]
    for number, line in [*bash, *ours]:
        words = shlex.split(line, comments=True)
        if words and not is_known(words):
            yield f"{document.name}:{number}: {line}"


def is_known(words):
    match words:
        case ["make", *rest]:
            return all(word in TARGETS for word in rest if "=" not in word)
        case [python, "-m", module, *_] if Path(python).name.startswith("python"):
            return importlib.util.find_spec(module) is not None
        case [python, script, *_] if Path(python).name.startswith("python"):
            return (ROOT / script).is_file()
        case ["meshax", *rest]:
            return is_accepted(rest)
        case ["git", "clone", *_] | ["cd", _]:
            return True
    return False


def is_accepted(words):
    """Says whether `meshax` takes a command line; nothing runs."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(ROOT))  # configuration files are named from there
        for kind in subclasses(Command):
            stack.enter_context(mock.patch.object(kind, "run", lambda self: None))
        return main(words) == 0


def subclasses(kind):
    for sub in kind.__subclasses__():
        yield sub
        yield from subclasses(sub)


def make_document(folder, text):
    document = folder / "guide.md"
    document.write_text(text)
    return document


@pytest.mark.parametrize(
    "document",
    some(DOCUMENTS, *(path for path in DOCUMENTS if path.name not in LONG)),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_programs_run_and_print_what_is_shown(document):
    done = run(document)
    assert done.returncode == 0, done.stderr
    assert not list(missing_lines(document, done.stdout)), done.stdout


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_name_what_exists(document):
    assert not list(unknown_commands(document))


def broken_links(document):
    """The links to files that are not there, and to headings that their document does not have."""
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", document.read_text(encoding="utf-8")):
        there = document.parent / target if target else document
        if not there.exists():
            yield target
        elif anchor and anchor not in headings(there):
            yield f"{target}#{anchor}"


def headings(document):
    """The anchors of a document's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("document", [*DOCUMENTS, *BESIDE], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    assert not list(broken_links(document))


def test_broken_links_are_found(tmp_path):
    text = "# One two\n[a](guide.md#one-two) [b](guide.md#three) [c](#four) [d](tea.md) [e](https://tea.example)\n"
    assert list(broken_links(make_document(tmp_path, text))) == ["guide.md#three", "#four", "tea.md"]


def unknown_names(document):
    """The names of meshax that a document mentions, and that do not exist."""
    for name in sorted(set(re.findall(r"`(?:mx|meshax)(?:\.\w+)+", document.read_text(encoding="utf-8")))):
        package, *words = name.strip("`").split(".")
        thing, path = meshax, "meshax"
        for word in words:
            path = f"{path}.{word}"
            with contextlib.suppress(ImportError):
                importlib.import_module(path)
            if not hasattr(thing, word):
                yield name.strip("`")
                break
            thing = getattr(thing, word)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_exist(document):
    assert not list(unknown_names(document))


def test_names_that_do_not_exist_are_found(tmp_path):
    document = make_document(tmp_path, "`mx.tea`, `mx.sum(x)`, `mx.random.normal`, `meshax.nn.Tea`, `meshax.nn.Linear`")
    assert list(unknown_names(document)) == ["meshax.nn.Tea", "mx.tea"]


_PLATFORMS = {"tpu": "tpu", "cuda": "gpu"}  # whose compilers tests of a mark need


def shown_plans():
    """Iterates over the commands `meshax plan` that documents show with what they print."""
    for document in DOCUMENTS:
        for block in blocks_of(document, "console"):
            command, _, shown = block.text.partition("\n")
            if command.startswith("$ meshax plan "):
                marks = [
                    mark for mark in (pytest.mark.tpu, pytest.mark.cuda) if f'"{_PLATFORMS[mark.name]} ' in command
                ]
                yield pytest.param(shlex.split(command)[2:], shown, id=f"{document.name}:{block.line}", marks=marks)


@pytest.mark.parametrize(("words", "shown"), list(shown_plans()))
def test_plans_print_what_is_shown(words, shown, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(words) == 0
    printed = {plain(line) for line in capsys.readouterr().out.splitlines()}
    assert not [line for line in shown.splitlines() if plain(line) not in printed | {"", "..."}]


def shown_failures():
    """Iterates over console blocks whose last command is one of `meshax train` that fails: commands, what they say."""
    for document in DOCUMENTS:
        for block in blocks_of(document, "console"):
            commands = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
            shown = [line for line in block.text.splitlines() if not line.startswith("$ ")]
            if commands and commands[-1].startswith("meshax train ") and "".join(shown).startswith("meshax: "):
                yield pytest.param(commands, shown, id=f"{document.name}:{block.line}")


@pytest.mark.parametrize(("commands", "shown"), list(shown_failures()))
def test_failures_say_what_is_shown(commands, shown, capsys, monkeypatch, tmp_path):
    """But for figures, which differ between machines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("meshax.cli.joining.use_processors", lambda *_: None)  # the tests' own: JAX is in use already
    *before, last = commands
    for command in before:
        subprocess.run(command, shell=True, check=True)
    assert main(shlex.split(last)[1:]) == 1
    without_figures = [re.sub(r"\d+\.\d+", "#", line) for line in capsys.readouterr().err.splitlines()]
    assert without_figures[-len(shown) :] == [re.sub(r"\d+\.\d+", "#", line) for line in shown]


def test_there_is_a_failure_to_try():
    assert len(list(shown_failures())) == 1


def test_blocks_share_one_program(tmp_path):
    document = make_document(tmp_path, "# Guide\n\n```python\nx = 20\n```\n\nNow:\n\n```python\nprint(x + 1)\n```\n")
    assert run(document).stdout == "21\n"


def test_a_failure_names_its_line(tmp_path):
    document = make_document(tmp_path, "# Guide\n\n```python\nx = 20\nx / 0\n```\n")
    done = run(document)
    assert done.returncode == 1
    assert done.stderr.endswith(f"{document}:4: this block does not run\n")
    assert f'"{document}", line 5' in done.stderr


def test_output_that_is_not_printed_is_found(tmp_path):
    document = make_document(tmp_path, "```text\n│ all-reduce │ rows │ train.py:3 │\n...\n│ all-reduce │ cols │\n```\n")
    printed = "┃ all-reduce ┃   rows ┃ README.md:33 ┃\nmore\n"
    assert list(missing_lines(document, printed)) == ["guide.md:4: not printed: │ all-reduce │ cols │"]


@pytest.mark.parametrize(
    "command",
    [
        "make demo",
        "make test VENV=.venv-3.12",
        "python tests/test_docs.py",
        "# a comment",
        "meshax train --config examples/books.toml --optimizer.rate 1e-3  # this too",
    ],
)
def test_commands_that_exist(tmp_path, command):
    assert not list(unknown_commands(make_document(tmp_path, f"```bash\n{command}\n```\n")))


@pytest.mark.parametrize(
    "command",
    ["make tea", "python tests/test_tea.py", "python -m tea", "brew tea", "meshax tea", "meshax train --tea 3"],
)
def test_commands_that_do_not_exist(tmp_path, command):
    assert list(unknown_commands(make_document(tmp_path, f"```bash\n{command}\n```\n")))


@pytest.mark.parametrize("shown", ["    meshax tea", "```console\n$ meshax tea\n```"])
def test_commands_elsewhere_are_looked_at_too(tmp_path, shown):
    assert list(unknown_commands(make_document(tmp_path, f"{shown}\n")))


def test_the_page_on_options_shows_the_example_configuration():
    (shown,) = blocks_of(ROOT / "docs" / "options.md", "toml")
    assert (ROOT / "examples" / "books.toml").read_text(encoding="utf-8").endswith(shown.text)


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 200
