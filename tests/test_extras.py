"""Extras: what is not installed is named, and no import of an optional package is made without saying how to get it."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import meshax
from meshax.extras import ExtraError, check_extra, extra
from messages import pinned

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "meshax"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BROUGHT_BY_JAX = {"jaxlib", "ml_dtypes"}
BESIDE = {"torch"}  # measured beside ours; no extra of ours has it

HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
from meshax.cli import main
sys.exit(main())
"""


OTHERWISE = {"pyyaml": "yaml"}  # what it is imported as


def packages(requirements):
    names = {re.match(r"[\w.-]+", requirement)[0] for requirement in requirements} - {"meshax"}
    return {OTHERWISE.get(name.lower(), name) for name in names}


def third_party_imports(tree, name=None):
    """Yields (the package, the extra it is imported for, the line) of each import that is not ours or Python's own."""
    for node in ast.iter_child_nodes(tree):
        inside = name
        if isinstance(node, ast.With) and ast.unparse(node.items[0].context_expr).startswith("extra("):
            inside = node.items[0].context_expr.args[0].value
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        elif isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
            for module in modules:
                if (package := module.partition(".")[0]) not in sys.stdlib_module_names:
                    yield package, name, node.lineno
        yield from third_party_imports(node, inside)


def imports_without_a_word(source):
    """Yields the imports of packages that may be missing outside of `extra`, and in one of another extra."""
    extras = {name: packages(wanted) for name, wanted in PROJECT["optional-dependencies"].items()}
    always = packages(PROJECT["dependencies"]) | BROUGHT_BY_JAX | BESIDE
    for package, name, line in third_party_imports(ast.parse(source)):
        if package not in (extras[name] if name else always):
            yield f"line {line}: {package}, of the extra {name}"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_what_may_be_missing_is_imported_inside_of_extra(path):
    assert not list(imports_without_a_word(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "source", ["import grain", "def f():\n    from grain import x", 'with extra("parquet", "tea"):\n    import grain']
)
def test_other_imports_are_seen(source):
    assert list(imports_without_a_word(source))
    assert not list(imports_without_a_word('with extra("train", "tea"):\n    import grain.sub\nimport jax, sys'))


def test_few_packages_are_always_needed():
    assert packages(PROJECT["dependencies"]) == {"jax", "numpy", "rich", "equinox", "optax", "tyro"}


def import_tea():
    with extra("train", "cups"):
        import tea.leaves  # noqa: F401


def look_for_tea():
    check_extra("train", "cups", "tea")


test_messages = pinned(
    {
        "not installed": (
            ExtraError,
            import_tea,
            """
            cups need tea.
              fix: pip install 'meshax[train]'.
            """,
        ),
        "looked for": (
            ExtraError,
            look_for_tea,
            """
            cups need tea.
              fix: pip install 'meshax[train]'.
            """,
        ),
    }
)


def test_it_is_an_import_error_too():
    with pytest.raises(ImportError, match="cups need tea"):
        import_tea()


def without_extras(*words):
    hidden = set().union(*(packages(wanted) for wanted in PROJECT["optional-dependencies"].values()))
    hidden -= packages(PROJECT["dependencies"])  # of which an extra may want more: jax[cuda12]
    command = [sys.executable, "-c", HIDDEN.format(hidden=hidden), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_training_names_what_is_missing(tmp_path):
    done = without_extras("train", "--steps", "1", "--out", str(tmp_path / "run"))
    said = "meshax: checkpoints need tensorstore.\n  fix: pip install 'meshax[train]'.\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_the_server_names_what_is_missing():
    done = without_extras("serve")
    assert (done.returncode, done.stderr) == (
        1,
        "meshax: servers need starlette.\n  fix: pip install 'meshax[serve]'.\n",
    )


def test_a_preset_is_explained_without_extras():
    done = without_extras("explain", "--preset", "tiny", "--mesh", "data:2", "--layout", "data")
    assert done.returncode == 0, done.stderr
    assert "all-reduce" in done.stdout


def test_the_version_is_said_at_once():
    code = "import sys, meshax.cli; meshax.cli.main(['--version']); assert 'tyro' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"meshax {meshax.__version__}\n"
