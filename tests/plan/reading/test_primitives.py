"""The table of primitives: every one that an operation, a layer or a model uses is in it."""

import contextlib

import jax
import jax.extend
import numpy as np
import pytest

import decoder
import meshax as mx
from cases import GROUPS
from extent import some
from layouts import forward_and_gradient
from meshax.collectives import PRIMITIVES
from meshax.models.presets import PRESETS
from meshax.plan.reading.primitives import KINDS, traits_of
from meshax.plan.search.graph import Graph
from meshax.train.preset_steps import preset_target

MESH = mx.Mesh("rows:2 cols:2", abstract=True)


def unknown(*blocks):
    return {step.name for block in blocks for step in block.all_steps() if not step.traits.is_known}


def layouts(group):
    first, *rest = group.names
    return "", f"{first}:rows", f"{(rest or [first])[-1]}:rows+cols"


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_the_primitives_of_every_operation_are_known(group):
    xs = jax.tree.map(
        lambda x: mx.Tensor(jax.ShapeDtypeStruct(x.array.shape, x.dtype), x.dims),
        group.inputs,
        is_leaf=lambda x: isinstance(x, mx.Tensor),
    )

    def program(*xs):
        results = {}
        for case in group.cases:
            with contextlib.suppress(mx.LayoutError):  # dims that collide
                results[case.name] = forward_and_gradient(case.fn, xs)(*xs)
        return results

    for layout in layouts(group):
        assert not unknown(mx.spmd(program, MESH, layout).explain(*xs).block), layout
    assert not unknown(Graph(lambda *xs: [forward_and_gradient(case.fn, xs)(*xs) for case in group.cases], xs).block)


@pytest.mark.parametrize("preset", some(PRESETS, "tiny", "lm-0.14b", "wmt-0.15b"))
def test_the_primitives_of_every_model_are_known(preset):
    step = preset_target(preset)
    mesh = mx.Mesh("data:2 model:2", abstract=True)
    report = mx.spmd(step.fn, mesh, "batch:data heads:model d_ff:model vocab:model", step.donate).explain(*step.args)
    assert not unknown(report.block, Graph(step.fn, step.args, step.donate).block)


def test_the_primitives_of_a_model_with_other_layers_are_known():
    report = mx.spmd(decoder.sgd, mx.Mesh("data:2 model:2", abstract=True), "batch:data heads:model").explain(
        decoder.init(), *decoder.tokens()
    )
    assert not unknown(report.block)


def test_every_collective_has_its_kind():
    assert {traits_of(name).collective for name in PRIMITIVES} == set(KINDS)


def test_a_primitive_that_nobody_knows_is_elementwise():
    (a,) = mx.dims(a=4)
    strange = jax.extend.core.Primitive("strange")
    strange.def_abstract_eval(lambda x: x)
    fn = mx.spmd(lambda x: mx.local(lambda array: strange.bind(array), x, out="a") * 2, MESH, "")
    x = mx.Tensor(jax.ShapeDtypeStruct((4,), np.float32), (a,))
    assert unknown(fn.explain(x).block) == {"strange"}
    assert fn.explain(x).seconds("cpu") == mx.spmd(lambda x: -x * 2, MESH, "").explain(x).seconds("cpu")
