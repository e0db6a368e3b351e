"""optax's transformations on split gradients, called as optax is: the numbers of the unsplit run, or an error.

Some work element by element, and have to work. Others reduce over a leaf, draw noise of its shape or factor it: on
slices they would give other numbers, so they have to raise. What each of them is, the table does not say, except for
those that must work.
"""

import random

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

import meshax as mx
from extent import WHOLE
from meshax import optim
from meshax.layout import Setting
from meshax.testing import place_with_garbage

h, k = mx.dims("h:6 k:5")
STEPS = 2
CASES = {  # the mesh and the layout
    "split": ("m:4", mx.Layout("h:m")),
    "both dims": ("m:2 n:2", mx.Layout("h:m k:n")),
    "stored": ("m:2 n:2", mx.Layout("", params="h:m+n", optimizer="h:m+n")),
}


def _schedule(step):
    return 0.1 / (1 + step)


WORKS = {  # element by element
    "identity": optax.identity,
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, 0.9),
    "nesterov": lambda: optax.sgd(_schedule, 0.9, nesterov=True),
    "adam": lambda: optax.adam(0.1),
    "adamw": lambda: optax.adamw(0.1, weight_decay=0.01),
    "nadam": lambda: optax.nadam(0.1),
    "adamax": lambda: optax.adamax(0.1),
    "amsgrad": lambda: optax.amsgrad(0.1),
    "adabelief": lambda: optax.adabelief(0.1),
    "adadelta": lambda: optax.adadelta(0.1),
    "adagrad": lambda: optax.adagrad(0.1),
    "adan": lambda: optax.adan(0.1),
    "radam": lambda: optax.radam(0.1),
    "rmsprop": lambda: optax.rmsprop(0.1, momentum=0.9),
    "rprop": lambda: optax.rprop(0.1),
    "yogi": lambda: optax.yogi(0.1),
    "lion": lambda: optax.lion(0.1),
    "sign_sgd": lambda: optax.sign_sgd(0.1),
    "optimistic_gradient_descent": lambda: optax.optimistic_gradient_descent(0.1),
    "optimistic_adam_v2": lambda: optax.optimistic_adam_v2(0.1),
    "scale": lambda: optax.scale(0.3),
    "scale_by_adam": optax.scale_by_adam,
    "scale_by_rms": optax.scale_by_rms,
    "scale_by_rss": optax.scale_by_rss,
    "scale_by_stddev": optax.scale_by_stddev,
    "scale_by_belief": optax.scale_by_belief,
    "scale_by_yogi": optax.scale_by_yogi,
    "scale_by_sign": optax.scale_by_sign,
    "scale_by_schedule": lambda: optax.scale_by_schedule(_schedule),
    "clip": lambda: optax.clip(0.2),
    "trace": lambda: optax.trace(0.9),
    "ema": lambda: optax.ema(0.9),
    "add_decayed_weights": lambda: optax.add_decayed_weights(0.1),
    "apply_every": lambda: optax.apply_every(2),
    "set_to_zero": optax.set_to_zero,
    "keep_params_nonnegative": optax.keep_params_nonnegative,
    "chain": lambda: optax.chain(optax.clip(0.2), optax.scale_by_adam(), optax.scale_by_learning_rate(_schedule)),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(0.1),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(0.1), 2).gradient_transformation(),
    "named_chain": lambda: optax.named_chain(("clip", optax.clip(0.2)), ("adam", optax.scale_by_adam())),
    "masked by a tree": lambda: optax.masked(optax.adam(0.1), {"w": True, "b": False, "scale": True}),
    "adam and its ema": lambda: optax.chain(optax.adam(0.1), optax.ema(0.5)),
    "ademamix": lambda: contrib.ademamix(0.1),
    "adopt": lambda: contrib.adopt(0.1),
    "acprop": lambda: contrib.acprop(0.1),
    "cocob": lambda: contrib.cocob(0.1),
    "madgrad": lambda: contrib.madgrad(0.1),
    "schedule_free_sgd": lambda: contrib.schedule_free_sgd(0.1),
    "simplified_ademamix": lambda: contrib.simplified_ademamix(0.1),
}

EITHER = {  # right, or an error
    "zero_nans": optax.zero_nans,  # its state says whether there was one
    "clip_by_global_norm": lambda: optax.clip_by_global_norm(0.1),
    "clip_by_block_rms": lambda: optax.clip_by_block_rms(0.1),
    "adaptive_grad_clip": lambda: optax.adaptive_grad_clip(0.1),
    "lamb": lambda: optax.lamb(0.1),
    "lars": lambda: optax.lars(0.1),
    "fromage": lambda: optax.fromage(0.1),
    "scale_by_trust_ratio": optax.scale_by_trust_ratio,
    "scale_by_param_block_norm": optax.scale_by_param_block_norm,
    "scale_by_param_block_rms": optax.scale_by_param_block_rms,
    "adafactor": lambda: optax.adafactor(0.1, min_dim_size_to_factor=4),
    "adafactor, not factored": lambda: optax.adafactor(0.1),
    "scale_by_factored_rms": lambda: optax.scale_by_factored_rms(min_dim_size_to_factor=4),
    "sm3": lambda: optax.sm3(0.1),
    "novograd": lambda: optax.novograd(0.1),
    "add_noise": lambda: optax.add_noise(0.1, 0.5, jax.random.key(3)),
    "noisy_sgd": lambda: optax.noisy_sgd(0.1, key=jax.random.key(3)),
    "centralize": optax.centralize,
    "normalize_by_update_norm": optax.normalize_by_update_norm,
    "scale_by_distance_over_gradients": optax.scale_by_distance_over_gradients,
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(0.1), 3),
    "skip_large_updates": lambda: optax.MultiSteps(
        optax.sgd(0.1), 2, should_skip_update_fn=_skip_large
    ).gradient_transformation(),
    "lbfgs": lambda: optax.lbfgs(0.1, linesearch=None),
    "flatten": lambda: optax.flatten(optax.adam(0.1)),
    "conditionally_transform": lambda: optax.conditionally_transform(optax.adam(0.1), lambda step: step > 0),
    "conditionally_mask": lambda: optax.conditionally_mask(optax.adam(0.1), lambda step: step > 0),
    "masked by shape": lambda: optax.masked(optax.adam(0.1), lambda p: jax.tree.map(lambda a: a.ndim > 1, p)),
    "multi_transform": lambda: optax.multi_transform(
        {"a": optax.adam(0.1), "b": optax.sgd(0.1)}, lambda p: jax.tree.map(lambda a: "a" if a.ndim > 1 else "b", p)
    ),
    "multi_transform with a norm": lambda: optax.multi_transform(
        {"a": optax.lamb(0.1), "b": optax.sgd(0.1)}, {"w": "a", "b": "b", "scale": "b"}
    ),
    "freeze": lambda: optax.transforms.freeze({"w": True, "b": False, "scale": False}),
    "muon": lambda: contrib.muon(0.1),
    "galore": lambda: contrib.galore(0.1, rank=2),
    "prodigy": lambda: contrib.prodigy(0.1),
    "dadapt_adamw": lambda: contrib.dadapt_adamw(0.1),
    "dog": lambda: contrib.dog(0.1),
    "dowg": lambda: contrib.dowg(0.1),
    "normalize": contrib.normalize,
    "mechanize": lambda: contrib.mechanize(optax.adam(0.1)),
    "sam": lambda: contrib.sam(optax.sgd(0.1), optax.sgd(0.05), reset_state=False),
    "schedule_free_adamw": lambda: contrib.schedule_free_adamw(0.1),
    "split_real_and_imaginary": lambda: contrib.split_real_and_imaginary(optax.adam(0.1)),
    "a product": lambda: _stateless(lambda g: g @ jnp.swapaxes(g, -1, -2) @ g if g.ndim == 2 else g),
    "Shampoo, in a line": lambda: _stateless(lambda g: _root(g @ g.T) @ g if g.ndim == 2 else g),
    "a mean over rows": lambda: _stateless(lambda g: g - jnp.mean(g, 0) if g.ndim == 2 else g),
    "a mean over columns": lambda: _stateless(lambda g: g - jnp.mean(g, -1, keepdims=True) if g.ndim == 2 else g),
    "a cumsum": lambda: _stateless(lambda g: jnp.cumsum(g, 0) if g.ndim else g),
    "noise": lambda: _stateless(lambda g: g + jax.random.normal(jax.random.key(0), g.shape)),
}


def _skip_large(updates, step, params):
    return optax.skip_large_updates(updates, step, params, 0.5)


def _root(matrix):
    return jnp.linalg.inv(jnp.linalg.cholesky(matrix + jnp.eye(matrix.shape[0])))


def _stateless(fn):
    return optax.stateless(lambda updates, params: jax.tree.map(fn, updates))


def _values(dims, phase):
    return mx.tensor(
        np.sin(phase + 1.3 * np.arange(np.prod([d.size for d in dims]))).reshape([d.size for d in dims]), dims
    )


def parameters(phase):
    """A matrix, and a vector along each of its dims."""
    return {
        name: mx.param(_values(dims, phase + i).astype(jnp.float32))
        for i, (name, dims) in enumerate({"w": (h, k), "b": (h,), "scale": (k,)}.items())
    }


def run(transformation, params, *grads):
    """Returns the updates, the last state and parameters of some steps, called as optax is."""
    state, updates = transformation.init(params), None
    for gradient in grads:
        updates, state = transformation.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return updates, state, params


def run_ours(transformation, params, *grads):
    """Returns the last state and parameters of some steps of the transformation as one of our optimizers."""
    optimizer = optim.from_optax(transformation)
    state = optimizer.init(params)
    for gradient in grads:
        params, state = optimizer.apply(gradient, state, params)
    return state, params


ARGS = [parameters(0), *(parameters(i) for i in range(1, STEPS + 1))]


def outcome(fn, made, mesh, layout):
    """Returns what a run gives under a layout, or the error it raises."""
    try:
        mx.spmd(lambda *args: fn(made(), *args), mesh, layout).trace(*ARGS)
    except Exception as error:
        return error
    return made


def is_refusal(error):
    """Whether an error is ours, or JAX's own about slices that vary where a loop or a branch began with none."""
    return isinstance(error, mx.MeshaxError) or (isinstance(error, TypeError) and "must have equal" in str(error))


def wrong_ones(fn, table, case, may_raise):
    """Returns a line for each transformation that gives other numbers, or that raises what or when it should not."""
    mesh, layout = CASES[case]
    mesh, wrong, left = mx.Mesh(mesh), [], {}
    for name, made in table.items():
        found = outcome(fn, made, mesh, layout)
        if not isinstance(found, Exception):
            left[name] = made
        elif not (may_raise and is_refusal(found)):
            wrong.append(f"{name}: {type(found).__name__}: {str(found)[:300]}")
    if not left:
        return wrong

    def every(*args):
        return {name: numbers(fn(made(), *args)) for name, made in left.items()}

    placed = jax.tree.map(lambda x: place_with_garbage(x, Setting(mesh, layout)), ARGS, is_leaf=_is_tensor)
    got, wanted = mx.spmd(every, mesh, layout)(*placed), jax.jit(every)(*ARGS)
    return wrong + [f"{name}: other numbers than unsplit" for name in left if differ(got[name], wanted[name])]


def _is_tensor(x):
    return isinstance(x, mx.Tensor)


def numbers(tree):
    """Returns tensors and arrays of a tree, without what optax's masks leave in their place."""
    leaves = jax.tree.leaves(tree, is_leaf=_is_tensor)
    return [x for x in leaves if hasattr(x.array if _is_tensor(x) else x, "dtype")]


def differ(got, wanted):
    for one, other in zip(got, wanted, strict=True):
        one, other = (np.asarray(x.numpy() if _is_tensor(x) else x) for x in (one, other))
        same_kind = one.shape == other.shape and one.dtype == other.dtype
        if not same_kind or not np.allclose(one, other, 2e-4, 2e-5, equal_nan=True):
            return True
    return False


def sample(table, count, seed):
    return table if WHOLE else {name: table[name] for name in random.Random(seed).sample(sorted(table), count)}


@pytest.mark.parametrize("case", CASES)
def test_elementwise_transformations_work_on_slices(case, record_property):
    table = sample(WORKS, 4, case)
    wrong = wrong_ones(run, table, case, may_raise=False)
    assert not wrong, "\n".join(wrong)
    record_property("checked", len(table))


@pytest.mark.parametrize("case", CASES)
def test_other_transformations_are_right_or_raise(case, record_property):
    table = sample(EITHER, 5, case)
    wrong = wrong_ones(run, table, case, may_raise=True)
    assert not wrong, "\n".join(wrong)
    record_property("checked", len(table))


@pytest.mark.parametrize("case", CASES)
def test_elementwise_transformations_are_our_optimizers(case, record_property):
    table = sample(WORKS, 2, f"ours {case}")
    wrong = wrong_ones(run_ours, table, case, may_raise=False)
    assert not wrong, "\n".join(wrong)
    record_property("checked", len(table))


@pytest.mark.parametrize("case", CASES)
def test_other_transformations_are_our_optimizers_or_raise(case, record_property):
    table = sample(EITHER, 3, f"ours {case}")
    wrong = wrong_ones(run_ours, table, case, may_raise=True)
    assert not wrong, "\n".join(wrong)
    record_property("checked", len(table))
