"""Operations know their names: what is emitted bears the operation that a line of the user's calls."""

import importlib.util
import inspect

import jax
import jax.numpy as jnp
import optax
import pytest

import meshax as mx
from meshax import nn, optim
from meshax.plan.reading.walk import told_apart, without_operations
from meshax.sources import Source, operation, operations_in

rows, cols = mx.dims(rows=8, cols=4)
X = mx.tensor(jax.ShapeDtypeStruct((8, 4), jnp.float32), (rows, cols))
KEY = jax.random.key(0)


def explained(fn, *args):
    return mx.spmd(fn, mx.Mesh("x:2 y:2", abstract=True), "rows:x cols:y").explain(*args)


def names(fn, *args):
    """Returns the names of the operations in a program."""
    return {step.source.op for step in explained(fn, *args).block.all_steps()}


TURNS = mx.Dim("turns", 3)
ADAM = optim.from_optax(optax.adam(1e-3))
NAMES = {
    "a function": (lambda x: mx.softmax(x, cols), {"softmax"}),
    "one that is lifted": (lambda x: mx.lift(jnp.arctan)(mx.sum(x, cols)), {"sum", "arctan"}),
    "a method": (lambda x: x.astype("int32"), {"astype"}),
    "an operator": (lambda x: x + x, {"operator"}),
    "an operator of one": (lambda x: abs(-x), {"abs", "negative"}),
    "random numbers": (lambda x: mx.random.normal(KEY, (rows, cols)), {"normal"}),
    "a loop": (lambda x: mx.scan(lambda c, _: (mx.exp(c), None), x, over=TURNS)[0], {"scan", "exp"}),
    "what is computed again": (lambda x: mx.remat(lambda x: mx.exp(x))(x), {"exp"}),
    "a gradient": (lambda x: mx.grad(lambda x: mx.sum(mx.exp(x)))(x), {"grad", "sum", "exp"}),
    "JAX's own": (lambda x: jax.tree.map(jnp.exp, x), {""}),
    "JAX's own in a loop": (lambda x: mx.scan(lambda c, _: (jnp.sin(c), None), 0.5, over=TURNS)[0], {"scan", ""}),
    "a layer": (lambda x: nn.Dropout(0.5)(x, KEY), {"Dropout"}),
    "making a layer": (lambda x: nn.Linear.init(KEY, (rows,), (cols,)), {"Linear.init"}),
    "an optimizer": (lambda x: ADAM.apply(x, ADAM.init(x), x)[0], {"optimizer"}),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_what_is_emitted_bears_the_name_that_users_know(name):
    fn, wanted = NAMES[name]
    assert names(fn, X) == wanted


def test_every_public_operation_has_a_name():
    exported = [getattr(mx, name) for name in mx.__all__] + [getattr(mx.random, name) for name in mx.random.__all__]
    functions = [fn for fn in exported if inspect.isfunction(fn) and fn.__module__.startswith("meshax.ops.")]
    layers = [layer for layer in vars(nn).values() if inspect.isclass(layer)]
    methods = [vars(layer)["__call__"] for layer in layers if "__call__" in vars(layer)]  # others inherit it
    methods += [vars(layer)["init"].__func__ for layer in layers if "init" in vars(layer)]

    assert functions and methods
    assert not [fn.__qualname__ for fn in [*functions, *methods] if not _is_operation(fn)]


def _is_operation(fn):
    return "sources.py" in inspect.getsourcefile(getattr(fn, "method", fn).__code__)


def test_two_files_of_one_name_are_told_apart(tmp_path):
    text = "import meshax as mx\n\ndef double(x):\n    return {} * x\n"
    models = []
    for folder, factor in (("first", 2), ("second", 3)):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "model.py"
        file.write_text(text.format(factor), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"{folder}_model", file)
        models.append(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(models[-1])

    def both(x):
        return [model.double(x) for model in models]

    data = explained(both, X).as_dict()
    assert {row["line"] for row in data["work"]} == {"first/model.py:4", "second/model.py:4"}
    assert data["sources"]["second/model.py"]["lines"][3] == "    return 3 * x"

    alone = explained(models[0].double, X).as_dict()
    assert {row["line"] for row in alone["work"]} == {"model.py:4"}


def test_as_much_of_a_path_as_it_takes():
    files = ["/a/x/model.py", "/b/x/model.py", "/b/y/model.py", "/b/y/loss.py"]
    assert told_apart(files) == {
        "/a/x/model.py": "a/x/model.py", "/b/x/model.py": "b/x/model.py", "/b/y/model.py": "b/y/model.py",
    }  # fmt: skip


def test_a_scope_is_shown_as_the_user_has_named_it():
    def read(x):
        with jax.named_scope("outside"):
            return operation(lambda x: x + 1, "reading")(x)

    (eqn,) = jax.make_jaxpr(read)(1.0).eqns
    scope, number = str(eqn.source_info.name_stack), read.__code__.co_firstlineno + 2
    assert scope == f"outside/reading at test_sources.py:{number}"
    assert without_operations(scope) == "outside"
    assert list(operations_in(f"jvp({scope})/mul")) == [Source(__file__, number, "reading")]
    assert without_operations(f"jvp({scope.partition('/')[2]})/mul") == "jvp()/mul"
