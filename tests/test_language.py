"""The documents leave nothing out: every operation, every error message, every module has its place."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import meshax as mx

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "meshax"
LANGUAGE, ERRORS, CODE_MAP = (
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("language.md", "errors.md", "code_map.md")
)
FUNCTIONS = [f"mx.{name}" for name in mx.__all__ if inspect.isfunction(getattr(mx, name))]
FUNCTIONS += [f"mx.random.{name}" for name in mx.random.__all__]
CLASSES = [name for name in mx.__all__ if inspect.isclass(getattr(mx, name))]
# These raise what they are given: their messages stand where they are called.
RAISERS = {"_check_outside", "check_same"}


def code_names(text):
    """The dotted names that a document writes as code in its prose and headings, programs left out."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return {name for code in re.findall(r"`([^`]+)`", prose) for name in re.findall(r"[\w.]+", code)}


def messages(source):
    """The (line, longest constant part) of each message that a module raises; an f-string has several parts."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Raise(exc=ast.Call(func=ast.Name(id=name), args=[message, *_])):
                if not hasattr(mx, name) and name not in ("UsageError", "error"):
                    continue  # caught by ourselves, and shown under "values" of a message
            case ast.Call(func=ast.Name(id=name), args=[message, *_]) if name in RAISERS:
                pass
            case ast.Call(func=ast.Attribute(attr=name), args=[_, message, *_]) if name in RAISERS:
                pass
            case _:
                continue
        if part := longest_constant(message):
            yield message.lineno, part


def longest_constant(message):
    constants = [n.value for n in ast.walk(message) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    if isinstance(message, ast.JoinedStr):
        constants = [part.value for part in message.values if isinstance(part, ast.Constant)]
    return max(constants, key=len, default="")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_described(name):
    assert name in code_names(LANGUAGE)


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_is_described(name):
    assert f"mx.{name}" in code_names(LANGUAGE) | code_names(ERRORS)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_message_is_explained(path):
    found = list(messages(path.read_text(encoding="utf-8")))
    assert not [f"{path.name}:{line}: {part}" for line, part in found if part not in ERRORS]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_is_on_the_map(path):
    is_room = path.name == "__init__.py" and len(ast.parse(path.read_text(encoding="utf-8")).body) == 1
    where = f"{path.parent.relative_to(SOURCE)}/" if is_room else f"`{path.relative_to(SOURCE)}`"
    assert where in CODE_MAP


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ('raise ShapeError("one thing.")', "one thing."),
        ("raise ShapeError(f\"dim {x!r} has {f(', ')} parts here.\")", " parts here."),
        ('raise LayoutError("the layout." + "".join(f"\\n {p}" for p in problems))', "the layout."),
        ('_check_outside("not inside.", "do this.")', "not inside."),
        ('first.check_same(out, f"the {op} does not come out.", rule="a rule.")', " does not come out."),
    ],
)
def test_messages_are_found(source, part):
    assert [found for _, found in messages(source)] == [part]


def test_the_worked_example_of_an_op_fits_the_code():
    """What the diffs of CONTRIBUTING.md replace is there."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    diffs = re.findall(r"^```diff\n--- a/(\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(diffs) == 4
    for name, diff in diffs:
        source = (ROOT / name).read_text(encoding="utf-8").splitlines()
        replaced = [line[1:] for line in diff.splitlines() if line.startswith("-")]
        assert replaced
        assert not [line for line in replaced if line not in source]


@pytest.mark.parametrize(
    "source",
    [
        "import meshax as mx; assert 'jax' not in sys.modules; assert 'einsum' in dir(mx); mx.einsum",
        "from meshax.data import Text; import meshax as mx; mx.tensor([1.0], 'n'); mx.dims(n=3)",  # no modules
        "from meshax import *; tensor([1.0], 'n'); einsum",
        "import meshax.nn; meshax.nn.Linear; from meshax import optim; from meshax import Dim",
        "import meshax as mx; assert not hasattr(mx, 'eisnum') and not hasattr(mx, '__eisnum__')",
    ],
)
def test_words_are_there_however_they_are_imported(source):
    done = subprocess.run([sys.executable, "-c", f"import sys; {source}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_word_is_a_module():
    """Importing the module would hide the word."""
    assert not {path.stem for path in SOURCE.iterdir()} & set(mx.__all__)
