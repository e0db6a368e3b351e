"""meshax.testing: what users check their own functions with."""

import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from meshax.testing import assert_collectives, layout_invariance, layouts_of
from messages import pinned

batch, d_model, heads = mx.dims(batch=6, d_model=5, heads=4)
X = mx.tensor(np.sin(np.arange(30)).reshape(6, 5), (batch, d_model))
W = mx.tensor(np.cos(np.arange(20)).reshape(5, 4), (d_model, heads))


def test_a_function_of_our_operations_passes():
    checked = layout_invariance(
        lambda x, w: {"probs": mx.softmax(mx.einsum(x, w, over=d_model), heads)}, X, W, layouts=6
    )
    assert checked >= 6


def test_a_function_that_looks_at_slices_fails_and_the_layout_is_named():
    def centred(x):
        return mx.local(lambda a: a - jnp.mean(a, axis=0), x, out="batch d_model", splittable="batch d_model")

    with pytest.raises(AssertionError, match=r"result.* differs under Layout\(.*batch:.*\) on Mesh\(x:8\)"):
        layout_invariance(centred, X)


def test_a_gradient_that_depends_on_the_layout_fails():
    @jax.custom_vjp
    def identity(a):
        return a

    identity.defvjp(lambda a: (a, None), lambda _, ct: (ct * ct.shape[0],))

    def wrong(x):
        return mx.local(identity, x, out="batch d_model", splittable="batch d_model")

    with pytest.raises(AssertionError, match=r"gradient.* differs under Layout\(.*\) on Mesh\(x:8\)"):
        layout_invariance(wrong, X)


def test_arguments_may_be_pytrees_with_integers_and_numbers():
    labels = mx.tensor(np.arange(6) % 4, (batch,))

    def loss(w, inputs, scale):
        logits = mx.einsum(inputs["x"], w["out"], over=d_model) * scale
        return mx.mean(mx.softmax_cross_entropy(logits, inputs["labels"], over=heads))

    assert layout_invariance(loss, {"out": mx.param(W)}, {"x": X, "labels": labels}, 2.0, layouts=4)


def test_without_gradients():
    assert layout_invariance(lambda x: mx.argmax(x, over=d_model), X, gradients=False, layouts=4)


def test_a_function_whose_dims_always_collide_is_not_passed_over():
    with pytest.raises(AssertionError, match="no layout could be checked"):
        layout_invariance(lambda x: x, mx.tensor(np.zeros(()), ()), meshes=(), layouts=1)


def test_layouts_of_a_mesh():
    mesh = mx.Mesh("x:2 y:2", abstract=True)
    found = list(layouts_of(mesh, ["batch"]))
    assert found == [mx.Layout(text) for text in ("", "batch:x", "batch:y", "batch:x+y", "batch:y+x")]
    assert len(set(layouts_of(mesh, ["batch", "heads"]))) == 25


def scores(x, w):
    return mx.softmax(mx.einsum(x, w, over=d_model), over=heads)


def program(layout="heads:x", fn=scores):
    return mx.spmd(fn, mx.Mesh("x:2", abstract=True), layout)


@pytest.fixture
def golden(tmp_path, monkeypatch):
    """The path of a golden file, in the current folder, written by the variable."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MESHAX_UPDATE_GOLDEN", "1")
    assert_collectives(program(), (X, W), "goldens/scores.json")
    monkeypatch.delenv("MESHAX_UPDATE_GOLDEN")
    return "goldens/scores.json"


def test_a_program_equals_its_golden(golden, tmp_path):
    assert_collectives(program(), (X, W), golden)
    assert_collectives(program(), [X, W], tmp_path / golden)
    assert_collectives(program(), (X, W), json.loads((tmp_path / golden).read_text()))
    assert_collectives(program("batch:x"), (X, W), [])


def test_arguments_may_be_shapes(golden):
    shapes = [mx.tensor(jax.ShapeDtypeStruct(x.array.shape, np.float32), x.dims) for x in (X, W)]
    assert_collectives(program(), shapes, golden)


def test_the_variable_writes_a_golden_anew(golden, monkeypatch):
    monkeypatch.setenv("MESHAX_UPDATE_GOLDEN", "1")
    assert_collectives(program("d_model:x"), (X, W), golden)
    monkeypatch.setenv("MESHAX_UPDATE_GOLDEN", "0")
    assert_collectives(program("d_model:x"), (X, W), golden)


MODEL = """
import meshax as mx
{more}
def scores(x, w):
    return mx.softmax(mx.einsum(x, w, over="d_model"), over="heads")
"""


def test_an_unrelated_line_above_changes_nothing(tmp_path, monkeypatch):
    for number, more in enumerate(("", "# a comment", "def another():\n    return 1\n\n")):
        path = tmp_path / str(number) / "model.py"
        path.parent.mkdir()
        path.write_text(MODEL.format(more=more))
        spec = importlib.util.spec_from_file_location("model", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setenv("MESHAX_UPDATE_GOLDEN", "0" if number else "1")
        assert_collectives(program(fn=module.scores), (X, W), tmp_path / "golden.json")


def changed(layout):
    assert_collectives(program(layout), (X, W), "goldens/scores.json")


def written(text):
    with open("goldens/scores.json", "w") as file:
        file.write(text)
    changed("heads:x")


BEFORE = "before float32[6], 1 x 24 bytes"
LINE = "test_testing.py: return mx.softmax(mx.einsum(x, w, over=d_model), over=heads)"
ALL_REDUCE = f"""
        {{"kind": "all-reduce", "axes": ["x"], "shape": [6, 4], "dtype": "float32", "count": 1, "phase": "forward", \
"op": "softmax", "line": "{LINE}"}}"""


test_messages = pytest.mark.usefixtures("golden")(
    pinned(
        {
            "other collectives": (
                AssertionError,
                lambda: changed("d_model:x"),
                f"""
                the collectives of scores are not those in goldens/scores.json:
                  {LINE}
                    ~ all-reduce over x of float32[6,4], forward, softmax: 1 x 96 bytes, {BEFORE}
                    - all-reduce over x of int32[6], forward, softmax: 1 x 24 bytes
                If this is meant, write the file anew with MESHAX_UPDATE_GOLDEN=1 in the environment.
                """,
            ),
            "none any more": (
                AssertionError,
                lambda: changed("batch:x"),
                f"""
                the collectives of scores are not those in goldens/scores.json:
                  {LINE}
                    - all-reduce over x of int32[6], forward, softmax: 1 x 24 bytes
                    - all-reduce over x of float32[6], forward, softmax: 1 x 24 bytes
                If this is meant, write the file anew with MESHAX_UPDATE_GOLDEN=1 in the environment.
                """,
            ),
            "not those of a list": (
                AssertionError,
                lambda: assert_collectives(program("d_model:x"), (X, W), []),
                f"""
                the collectives of scores have changed:
                  {LINE}
                    + all-reduce over x of float32[6,4], forward, softmax: 1 x 96 bytes
                If this is meant, the list is now:
                [
                  {ALL_REDUCE.strip()}
                ]
                """,
            ),
            "no file": (
                AssertionError,
                lambda: assert_collectives(program(), (X, W), "goldens/other.json"),
                "goldens/other.json does not exist yet. "
                "Write it with MESHAX_UPDATE_GOLDEN=1 in the environment, and keep it.",
            ),
            "another file": (
                AssertionError,
                lambda: written("tea"),
                """
                goldens/scores.json holds no collectives. Write it anew with MESHAX_UPDATE_GOLDEN=1 in the environment.
                """,
            ),
            "a list of something else": (
                mx.ArgumentError,
                lambda: assert_collectives(program(), (X, W), [1]),
                """
                this is not a list of collectives.
                  values: 1
                  rule: each is a dict of kind, axes, shape, dtype, count, phase, op, line.
                  fix: write it to a file with MESHAX_UPDATE_GOLDEN=1, and take it from there.
                """,
            ),
            "an argument alone": (
                mx.ArgumentError,
                lambda: assert_collectives(program(), X, []),
                """
                assert_collectives takes the arguments of the program in a tuple.
                  values: Tensor
                  fix: write assert_collectives(program, (w, x), golden).
                """,
            ),
        }
    )
)
