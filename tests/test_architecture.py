"""The house rules: which module may import which, how long they get, who may call a collective.

All but the last test read the source as syntax trees and import nothing of meshax.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src" / "meshax", ROOT / "tests"

# The order of the house: a module imports from its own layer and from those below.
LAYERS: dict[str, int] = {
    name: layer
    for layer, names in enumerate(
        [
            "errors dim compat sources",
            "mesh layout",
            "checking collectives rings transfer tensors",
            "ops",
            "program",
            "spatial plan",
            "nn optim",
            "models",
            "files extras interrupts processes data decode weights",
            "train launch bench serve",
            "language cli testing __main__",
        ]
    )
    for name in names.split()
}
# The imports that point up, each with its reason. There are to be no others.
UPWARD = {
    ("meshax.program", "meshax.plan.explain.report"): "a program explains itself, by those above who read programs",
}
CORE = range(5)  # the layers that are the language itself
READING_TRACES = ("checking", "sources")  # stands there too, and is counted by itself
MAX_CORE_LINES = 5_200
MAX_READING_LINES = 850
MAX_SPATIAL_LINES = 1_000
MAX_MODULE_LINES = 400
ROOMS = ("printing", "reading", "cost", "explain", "search", "compile")  # of plan, in the same order

# Tests of more than one module; all others are at tests/x/test_y.py, of the module x/y.py or the package x/y.
OF_SEVERAL_MODULES = {
    "invariants": "the layout harness",
    "golden": "trainings that equal Mesh-TensorFlow's",
    "examples": "the examples, as users run them",
    "cli.main": "the command line as a whole",
    "optim.optax_on_slices": "optax's transformations, called as optax is",
    "chaos": "kills, stops and damage at random instants",
    "launch.training": "a whole training as real processes",
    "train.layouts_agree": "a whole training under each layout",
    "accelerators": "the same programs on other hardware",
    "architecture": "the house rules",
    "benchmarks": "the programs that ours are measured beside",
    "communication": "what whole programs send",
    "compilers": "what we rely on in XLA",
    "add_a_model": "docs/add_a_model.md",
    "docs": "the documents",
    "from_scratch": "docs/from_scratch.py",
    "language": "docs/language.md",
    "log_page": "docs/logs.md",
    "packaging": "the wheel",
    "security": "what is loaded, and who listens",
    "site": "the documents as a site",
    "mesh_tensorflow_behaviour": "what Mesh-TensorFlow does, and we too",
}

COLLECTIVES = frozenset(
    {
        *("all_gather", "all_to_all", "pbroadcast", "pcast", "pmax", "pmean", "pmin", "ppermute", "pshuffle"),
        *("psum", "psum_scatter", "pswapaxes", "ragged_all_to_all"),
    }
)
COLLECTIVES_MODULE = "meshax.collectives"


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name, and what its syntax tree says."""

    name: str
    source: str
    is_package: bool = False

    @property
    def is_root(self) -> bool:
        return self.name == "meshax"

    @property
    def layer(self) -> int | None:
        """The layer of the module or package right under meshax; None when the table does not have it."""
        return LAYERS.get(self.name.split(".")[1])

    @property
    def num_lines(self) -> int:
        return len(self.source.splitlines())

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(ast.parse(self.source)))

    def imports(self) -> Iterator[tuple[int, str, str]]:
        """The (line, imported dotted name, local name) of each import, wherever in the file it is."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    local = alias.asname or alias.name.split(".")[0]
                    yield node.lineno, alias.name, local
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                for alias in node.names:
                    yield node.lineno, f"{base}.{alias.name}", alias.asname or alias.name

    def _absolute(self, node: ast.ImportFrom) -> str:
        """The dotted name that `from ..x import` starts from."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        ups = node.level - 1 if self.is_package else node.level
        return ".".join([*parts[: len(parts) - ups], *([node.module] if node.module else [])])

    def uses(self) -> Iterator[tuple[int, str]]:
        """The (line, dotted name) of each import and attribute, local names traced to what they import."""
        origins: dict[str, str] = {}
        for line, target, local in self.imports():
            yield line, target
            # `import jax.lax` binds jax, and `import jax.lax as lax` or `from jax import lax` binds jax.lax.
            origins[local] = local if target.startswith(f"{local}.") else target
        for node in self.nodes:
            if isinstance(node, ast.Attribute) and (dotted := _dotted(node)):
                head, _, rest = dotted.partition(".")
                yield node.lineno, f"{origins.get(head, head)}.{rest}"


def _dotted(node: ast.AST) -> str | None:
    """`a.b.c` for an attribute of a plain name, else None."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr) if base := _dotted(value):
            return f"{base}.{attr}"
    return None


@cache
def modules() -> tuple[Module, ...]:
    def load(path: Path) -> Module:
        is_package = path.name == "__init__.py"
        relative = path.relative_to(SOURCE.parent).with_suffix("")
        parts = relative.parts[:-1] if is_package else relative.parts
        return Module(".".join(parts), path.read_text(encoding="utf-8"), is_package)

    return tuple(load(path) for path in sorted(SOURCE.rglob("*.py")))


# Each rule yields one line per offence.


def upward_imports(module: Module, root_layer: int) -> Iterator[str]:
    """Imports of a higher layer. Importing the root package counts as the highest layer it exports."""
    for line, target, _ in module.imports():
        if target.split(".")[0] != "meshax":
            continue
        name = target.split(".")[1] if "." in target else ""
        layer = LAYERS.get(name, root_layer)
        assert module.layer is not None
        if layer > module.layer and (module.name, target.rpartition(".")[0]) not in UPWARD:
            yield f"{module.name}:{line}: layer {module.layer} imports {target} of layer {layer}"


def upward_from_ops(module: Module) -> Iterator[str]:
    return upward_imports(module, root_layer=LAYERS["plan"])


def stray_collectives(module: Module) -> Iterator[str]:
    if module.name == COLLECTIVES_MODULE:
        return
    for line, target in module.uses():
        parts = target.split(".")
        if len(parts) >= 2 and parts[-2] == "lax" and parts[-1] in {*COLLECTIVES, "*"}:
            yield f"{module.name}:{line}: {target}"


def private_jax(module: Module) -> Iterator[str]:
    for line, target in module.uses():
        if f"{target}.".startswith("jax._src."):
            yield f"{module.name}:{line}: {target}"


def private_names(module: Module) -> Iterator[str]:
    """Names with a leading underscore of another package of ours."""
    package = module.name if module.is_package else module.name.rpartition(".")[0]
    for line, target in module.uses():
        owner, *names = target.rpartition(".")[0], *target.split(".")
        is_private = any(name.startswith("_") and not name.startswith("__") for name in names)
        if is_private and names[0] == "meshax" and owner != package and owner.rpartition(".")[0] != package:
            yield f"{module.name}:{line}: {target}"


def unchecked_vma(module: Module) -> Iterator[str]:
    """Anything but a literal True for check_vma, as a keyword or in a dict of keywords."""
    for node in module.nodes:
        match node:
            case ast.keyword(arg="check_vma", value=value):
                values = [value]
            case ast.Dict(keys=keys, values=values):
                names = [key.value if isinstance(key, ast.Constant) else None for key in keys]
                values = [value for name, value in zip(names, values, strict=True) if name == "check_vma"]
            case _:
                continue
        for value in values:
            if not (isinstance(value, ast.Constant) and value.value is True):
                yield f"{module.name}:{value.lineno}: check_vma={ast.unparse(value)}"


def named_models(module: Module) -> Iterator[str]:
    """Models by name, where any that follows the contract has to do."""
    if module.name.split(".")[1:2] not in (["train"], ["plan"], ["cli"]):
        return
    for number, line in enumerate(module.source.splitlines(), 1):
        if "Decoder" in line or "models.decoder" in line:
            yield f"{module.name}:{number}: {line.strip()}"


def _offences(rule: Callable[[Module], Iterator[str]]) -> list[str]:
    return sorted({offence for module in modules() for offence in rule(module)})


def test_every_module_has_a_layer():
    missing = [module.name for module in modules() if not module.is_root and module.layer is None]
    assert not missing, "give these a place in LAYERS"


def test_contributors_read_the_same_table():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", text, re.MULTILINE)
    assert {name: int(layer) for layer, names in rows for name in re.findall(r"`(\w+)/?`", names)} == LAYERS


def names_of_tests() -> set[str]:
    """The names of modules and packages, and of whatever else, that have a file of tests."""
    paths = [path.relative_to(TESTS) for path in TESTS.rglob("test_*.py")]
    return {".".join([*path.parts[:-1], path.stem.removeprefix("test_")]) for path in paths}


def test_tests_are_where_their_module_is():
    names = {".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in SOURCE.rglob("*")}
    elsewhere = {name for name in names_of_tests() if not {name, name.split(".")[0]} & OF_SEVERAL_MODULES.keys()}
    assert not elsewhere - names, "tests/x/test_y.py is of the module x/y.py: move it, or say what it tests"


def test_every_module_has_tests_or_is_a_part_of_one_that_has():
    """A part is imported by its package, by a module there that has tests or is a part, or by a command."""
    plain = [module for module in modules() if not module.is_package and module.name != "meshax.__main__"]
    users = {module.name: {target for _, target, _ in module.imports()} for module in modules()}
    done = {f"meshax.{name}" for name in names_of_tests()} | {module.name for module in modules() if module.is_package}
    while True:
        near = {m.name for m in plain for user in done if user in users and _is_part(m.name, user, users[user])}
        if near <= done:
            break
        done |= near
    assert not [module.name for module in plain if module.name not in done], "tests/x/test_y.py of x/y.py is missing"


def _is_part(name: str, user: str, targets: set[str]) -> bool:
    is_near = user.split(".")[1:-1][:1] == name.split(".")[1:-1][:1] or user.startswith("meshax.cli")
    return is_near and any(f"{target}.".startswith(f"{name}.") for target in targets)


def test_imports_point_down():
    root = next(module for module in modules() if module.is_root)
    names = [target.split(".")[1] for _, target, _ in root.imports() if target.startswith("meshax.")]
    root_layer = max(LAYERS.get(name, 0) for name in names)
    members = [module for module in modules() if not module.is_root and module.layer is not None]
    assert not [offence for module in members for offence in upward_imports(module, root_layer)]


def test_every_exception_is_needed():
    upward = {
        (module.name, target.rpartition(".")[0])
        for module in modules()
        if not module.is_root
        for _, target, _ in module.imports()
        if target.startswith("meshax.") and LAYERS.get(target.split(".")[1], 0) > (module.layer or 0)
    }
    assert upward == set(UPWARD)


def test_rooms_of_plan_use_those_before_them():
    def room(name: str) -> int | None:
        parts = name.split(".")
        return ROOMS.index(parts[2]) if parts[:2] == ["meshax", "plan"] and len(parts) > 3 else None

    assert not [
        f"{module.name}:{line}: {target}"
        for module in modules()
        for line, target, _ in module.imports()
        if (own := room(module.name)) is not None and (other := room(target)) is not None and other > own
    ]


def test_modules_are_short():
    long = {module.name: module.num_lines for module in modules() if module.num_lines > MAX_MODULE_LINES}
    assert not long, f"more than {MAX_MODULE_LINES} lines: split by concern"


def test_the_language_is_small():
    core = {m.name: m.num_lines for m in modules() if not m.is_root and m.layer in CORE}
    reading = {name: core.pop(name) for name in list(core) if name.split(".")[1] in READING_TRACES}
    assert sum(core.values()) < MAX_CORE_LINES, core
    assert sum(reading.values()) < MAX_READING_LINES, reading


def test_what_windows_do_is_small_too():
    assert sum(m.num_lines for m in modules() if m.name.startswith("meshax.spatial")) < MAX_SPATIAL_LINES


def test_collectives_have_one_door():
    assert not _offences(stray_collectives), f"call these through {COLLECTIVES_MODULE}"


def test_nothing_imports_private_jax():
    assert not _offences(private_jax), "find a public API, and keep it in compat.py"


def test_private_names_stay_in_their_package():
    assert not _offences(private_names), "make it public, or ask its module for what you need"


def test_replication_is_always_checked():
    assert not _offences(unchecked_vma), "with check_vma off, gradients are silently wrong"


def test_nobody_knows_a_model_by_name():
    assert not _offences(named_models), "ask for what models/contract.py has"
    assert list(named_models(Module("meshax.train.example", "from ..models.decoder import DecoderConfig")))


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (stray_collectives, "import jax\njax.lax.psum(x, 'rows')"),
        (stray_collectives, "from jax import lax as l\nl.all_gather(x, 'rows')"),
        (stray_collectives, "import jax.lax as jl\nf = jl.ppermute"),
        (stray_collectives, "from jax.lax import psum as add"),
        (stray_collectives, "from jax.lax import *"),
        (stray_collectives, "def f(lax):\n    return lax.pmax"),
        (private_jax, "import jax._src.core"),
        (private_jax, "from jax import _src"),
        (private_jax, "from jax._src.core import Tracer"),
        (private_jax, "import jax\njax._src.core.Tracer"),
        (private_names, "from ..program import _abstract"),
        (private_names, "from meshax.plan.search import _rank"),
        (private_names, "from .. import program\nprogram._abstract"),
        (private_names, "from ..plan import _walk"),
        (private_names, "from ..plan._walk import read"),
        (unchecked_vma, "f(check_vma=False)"),
        (unchecked_vma, "f(check_vma=strict)"),
        (unchecked_vma, "options = {'check_vma': False}"),
        (upward_from_ops, "from meshax.program import spmd"),
        (upward_from_ops, "from meshax import program"),
        (upward_from_ops, "from meshax import spmd"),
        (upward_from_ops, "import meshax as mx"),
        (upward_from_ops, "from .. import program"),
        (upward_from_ops, "def f():\n    from ..program import spmd"),
    ],
)
def test_rules_catch_offences(rule, source):
    assert list(rule(Module("meshax.ops.example", source)))


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (stray_collectives, "from jax import lax\nlax.axis_index('rows')\ncollectives.psum(x)\n'lax.psum'"),
        (private_jax, "import jax\njax.extend.core.jaxprs_in_params"),
        (private_names, "from .shaping import _pieces\nfrom ..dim import Dim\nfrom . import shaping\nshaping._pieces"),
        (private_names, "from ..compat import __doc__\nimport jax\njax._private\nx._array\nself._made"),
        (unchecked_vma, "f(check_vma=True)"),
        (upward_from_ops, "from meshax.dim import Dim\nfrom . import shaping\nimport jax"),
    ],
)
def test_rules_let_the_rest_pass(rule, source):
    assert not list(rule(Module("meshax.ops.example", source)))


def test_public_ops_say_what_they_communicate():
    meshax = importlib.import_module("meshax")
    exported = [getattr(meshax, name) for name in meshax.__all__]
    exported += [getattr(meshax.random, name) for name in meshax.random.__all__]
    ops = [f for f in exported if inspect.isfunction(f) and f.__module__.startswith(("meshax.ops.", "meshax.spatial."))]
    silent = {
        f"{op.__module__}.{op.__name__}"
        for op in ops
        if not any(line.strip().startswith("Communication:") for line in (op.__doc__ or "").splitlines())
    }
    assert ops
    assert not silent, "add a 'Communication:' section: none, or which collective when"
