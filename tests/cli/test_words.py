"""Messages in the words of the command line: they name options that exist, and lines that the user wrote."""

import ast
import re
import threading
from pathlib import Path

import pytest

import meshax as mx
from meshax.cli import main
from meshax.cli.explain import Explain
from meshax.cli.generate import Generate
from meshax.cli.options import UsageError
from meshax.cli.words import SPELLINGS, spelled, words_for

SOURCE = Path(__file__).parents[2] / "src" / "meshax"
# What commands that take no program can raise, and those advices that no command line leads to.
REACHABLE = ("data", "train", "decode", "mesh.py", "layout.py", "models/presets.py", "plan/search/named_layouts.py")
COMMANDS = {"foreign.py": "import", "beams.py": "generate"}  # which lead there; to the other modules, train
UNREACHABLE = {
    "give the engine decode=.",  # commands always do
    "give the request source=.",
    "keep_last=None keeps all.",
    "call .close() on the other Checkpoints",
    "float(x), x.tolist(), str(key).",
    'jax.config.update("jax_enable_x64", True).',
    "pass some, or leave out devices=.",
    'write for example mx.Mesh("rows:32 cols:16", topology="tpu v2:16x16").',
}


def advice():
    """Iterates over the words of every fix=, where commands without a program may come by; names stand for values."""
    paths = [p for name in REACHABLE for p in ([SOURCE / name] if name.endswith(".py") else (SOURCE / name).glob("*"))]
    for path in (p for p in paths if p.suffix == ".py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "fix":
                parts = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
                yield path.name, " ".join(part for part in parts if isinstance(part, str))


def options_of(command, capsys):
    main([command, "--help"])
    return set(re.findall(r"--[\w.-]*\w", capsys.readouterr().out))


def test_advice_names_no_arguments_of_python():
    found = [(name, spelled(text)) for name, text in advice() if not any(known in text for known in UNREACHABLE)]
    assert len(found) > 40
    ours = re.compile(r"\b[a-z_]+=(?!=)|\bmx\.|\.\w+\(|\bkeep_|\bread_only")
    others = re.compile(r"xla_\w+=|AutoTokenizer\S*")  # flags of XLA's, and what is to be done in transformers
    assert not [one for one in found if ours.search(others.sub("", one[1]))]


def test_the_library_does_not_speak_of_options():
    """It speaks to those who write Python; here its arguments become options."""
    assert not [(name, text) for name, text in advice() if re.search(r"--[a-z]", text.replace("--test checks", ""))]


@pytest.mark.parametrize(
    ("python", "shown"),
    [
        ("choose another data.cache=, or out=.", "choose another --data.cache, or --out."),
        (
            "choose optimizer.microbatches=2 or 4, or batch=12.",
            "choose --optimizer.microbatches 2 or 4, or --batch 12.",
        ),
        ('or pass keep="auto".', "or pass --keep auto."),
        ("predicted with keep='all products': 1 MB", "predicted with --keep 'all products': 1 MB"),
        ("pass data.validation=FILE, or data.lines=True to", "pass --data.validation FILE, or --data.lines to"),
        ('name the field: field="..."; or errors="skip".', "name the field: --data.field ...; or --data.errors skip."),
        ("give model.d_model=512.", "give --model.d-model 512."),
        ('give one: mesh="data:2 model:4".', 'give one: --mesh "data:2 model:4".'),
        ("pass a spike= above 2.5.", "pass a --spike above 2.5."),
        ('Layout("b:x", optimizer="d:x") or keep="auto"', 'Layout("b:x", optimizer="d:x") or --keep auto'),
    ],
)
def test_arguments_become_options(python, shown):
    assert spelled(python) == shown


def test_advice_names_options_that_exist(capsys):
    known = {command: options_of(command, capsys) for command in {"train", *COMMANDS.values()}}
    for name, text in advice():
        options = known[COMMANDS.get(name, "train")] | {"--test"}  # of gzip and its like
        assert set(re.findall(r"--[a-z][\w.-]*\w", spelled(text))) <= options, name


@pytest.mark.parametrize("python", SPELLINGS)
def test_the_spellings_are_those_of_the_library(python):
    texts = (path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py") if path.name != "words.py")
    assert any(python in text for text in texts)


@pytest.mark.parametrize(
    ("python", "shown"),
    [
        ("keep_last is 0.\n  fix: give a number.", "--keep-last is 0.\n  fix: give a number."),
        ("optimizer.rate is -1.", "--optimizer.rate is -1."),
        ("a file of text is empty.", "a file of text is empty."),
    ],
)
def test_names_of_options(python, shown):
    assert spelled(python) == shown


def test_a_mesh_that_is_too_large():
    with pytest.raises(mx.MeshError) as raised:
        mx.Mesh("rows:64")
    words = words_for(raised.value, Generate())
    assert words.endswith("\n  fix: choose a smaller mesh; meshax explain, plan and layout need no devices.")


def test_lines_are_those_of_the_users_program():
    error = mx.ShapeError("it failed.")
    assert "\n  line: test_words.py:" in words_for(error, Explain(target="a.py:b"))
    assert words_for(error, Generate()) == words_for(error, None) == "it failed."
    assert words_for(UsageError("it failed."), Explain(target="a.py:b")) == "it failed."


def test_a_line_of_the_standard_library_is_nobodys():
    """What fails in a thread of ours has no line of the user's around it."""
    error = mx.MeshaxError.__new__(mx.MeshaxError)
    thread = threading.Thread(target=mx.MeshaxError.__init__, args=(error, "it failed."))
    thread.start()
    thread.join()
    assert str(error) == "it failed." and not hasattr(error, "__notes__")


def test_too_little_memory():
    error = RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 26214400000 bytes.\nmore")
    assert words_for(error, None) == (
        "there is not memory enough.\n"
        "  values: Out of memory allocating 26214400000 bytes.\n"
        "  fix: do less at once (a smaller batch, fewer slots, beams), or split more: meshax layout finds how."
    )


def test_what_is_not_ours():
    assert words_for(OSError("no\nmore"), None) == "OSError: no (--debug shows where)"
