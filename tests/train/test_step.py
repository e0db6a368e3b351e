"""One step: microbatches weigh what their tokens weigh, and a step that is not finite changes nothing."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.nn import Linear, cross_entropy
from meshax.optim.clipping import clipped
from meshax.optim.named_optimizers import by_name
from meshax.plan.compile.overlap import overlapping
from meshax.train.step import check_compiler_options, compiler_options, init_state, make_train_step

batch, length, hidden, vocab = mx.dims(batch=8, length=3, hidden=6, vocab=5)
OPTIMIZER = clipped(by_name("adamw", 1e-2), 1.0)
KEY = jax.random.key(0)
STORED = ("batch:x", "hidden:x", "hidden:x")  # also parameters, and the state of the optimizer


class Model(eqx.Module):
    """The smallest that has a loss."""

    linear: Linear

    def loss(self, batch, key=None):
        return cross_entropy(self.linear(batch["inputs"]), batch["targets"], batch["weights"], "vocab")


def examples():
    inputs = np.sin(np.arange(8 * 3 * 6)).reshape(8, 3, 6).astype(np.float32)
    weights = np.ones((8, 3), np.int32)
    weights[2:7, 1:] = 0
    return {
        "inputs": mx.tensor(inputs, (batch, length, hidden)),
        "targets": mx.tensor(np.arange(24).reshape(8, 3) % 5, (batch, length)),
        "weights": mx.tensor(weights, (batch, length)),
    }


def state():
    return init_state(lambda key: Model(Linear.init(key, (hidden,), (vocab,))), OPTIMIZER, KEY)


def leaves(tree):
    found = jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, mx.Tensor))
    return [leaf.numpy() if isinstance(leaf, mx.Tensor) else np.asarray(leaf) for leaf in found]


@pytest.mark.parametrize("layout", some(["batch:x", "vocab:x", STORED], "vocab:x", STORED), ids=str)
@pytest.mark.parametrize("microbatches", [None, 2])
def test_every_layout_and_microbatches_give_the_same(layout, microbatches):
    layout = layout if isinstance(layout, str) else mx.Layout(*layout)
    program = mx.spmd(make_train_step(OPTIMIZER, microbatches), mx.Mesh("x:2"), layout)
    got = program(state(), examples(), KEY)
    wanted = make_train_step(OPTIMIZER)(state(), examples(), KEY)
    for a, b in zip(leaves(got), leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    assert float(got[1]["count"]) == 14


def test_the_state_keeps_its_form():
    """Otherwise the second step would be compiled again."""
    first = state()
    second, _ = make_train_step(OPTIMIZER)(first, examples(), KEY)
    assert jax.tree.structure(first) == jax.tree.structure(second)
    types = [[(leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(tree)] for tree in (first, second)]
    assert types[0] == types[1]


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("layout", ["", "batch:x"])
def test_a_step_that_is_not_finite_changes_nothing_but_its_number(wrong, layout):
    given = examples()
    given["inputs"] = mx.where(mx.arange(batch) == 5, wrong, given["inputs"])
    first = state()
    second, told = mx.spmd(make_train_step(OPTIMIZER), mx.Mesh("x:2"), layout)(first, given, KEY)
    assert not bool(told["finite"]) and int(second.step) == 1
    for a, b in zip(leaves((first.model, first.optimizer)), leaves((second.model, second.optimizer)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_padding_may_count_in_the_loss_that_is_differentiated():
    """The gradients are smaller by the share of places that count; the loss that is shown is the same."""
    plain, told = make_train_step(OPTIMIZER)(state(), examples(), KEY)
    other, counted = make_train_step(OPTIMIZER, count_padding=True)(state(), examples(), KEY)
    share = 14 / examples()["weights"].numpy().size
    assert share < 1 and float(counted["count"]) == float(told["count"]) == 14
    assert float(counted["loss"]) == pytest.approx(float(told["loss"]), rel=1e-6)
    assert float(counted["norm"]) == pytest.approx(share * float(told["norm"]), rel=1e-5)


def test_a_batch_of_padding_alone_is_harmless():
    given = examples() | {"weights": mx.zeros((batch, length), jnp.int32)}
    second, told = make_train_step(OPTIMIZER)(state(), given, KEY)
    assert float(told["loss"]) == 0 and bool(told["finite"])
    assert all(np.isfinite(leaf).all() for leaf in leaves(second))


def test_options_of_the_compiler(monkeypatch):
    mesh = mx.Mesh("x:8")
    assert compiler_options(mesh) == {}
    changes = ["xla_cpu_enable_fast_math=True", "xla_backend_optimization_level=2"]
    changed = {"xla_cpu_enable_fast_math": True, "xla_backend_optimization_level": "2"}
    assert compiler_options(mesh, changes) == changed
    monkeypatch.setattr(type(mesh), "platform", "gpu")
    fastest = {
        "xla_gpu_enable_triton_gemm": False,
        "xla_gpu_enable_cublaslt": True,
        "xla_gpu_enable_dynamic_slice_fusion": False,
    }
    assert compiler_options(mesh) == fastest
    assert compiler_options(mesh, overlap=True) == fastest | overlapping("gpu")
    assert compiler_options(mesh, ["xla_gpu_enable_triton_gemm=true"]) == fastest | {"xla_gpu_enable_triton_gemm": True}


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        ("xla_no_such_flag", True, "No such compile option: 'xla_no_such_flag'"),
        ("xla_cpu_enable_fast_math", "perhaps", "While setting option xla_cpu_enable_fast_math, 'perhaps' is not a "),
    ],
)
def test_the_compiler_is_asked_whether_it_knows_its_options(flag, value, why):
    check_compiler_options({"xla_cpu_enable_fast_math": False})
    with pytest.raises(mx.ArgumentError) as raised:
        check_compiler_options({flag: value})
    message = str(raised.value)
    assert message.startswith(f"the compiler refuses its options.\n  values: {why}")
    assert message.endswith("\n  fix: correct them, or leave them out: XLA's flags differ from version to version.")


@pytest.mark.parametrize("wrong", ["xla_a", "xla_a=", "--xla_a=1", "fast=true"])
def test_what_is_no_option_of_the_compiler(wrong):
    with pytest.raises(mx.ArgumentError) as raised:
        compiler_options(mx.Mesh("x:8"), [wrong])
    assert str(raised.value) == (
        f"{wrong!r} is no option of the compiler.\n"
        "  fix: write a flag of XLA's, an equals sign and a value: xla_gpu_enable_triton_gemm=true."
    )
