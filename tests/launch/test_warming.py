"""Every group of processors has had a collective before the first step."""

import pytest

import meshax as mx
from meshax.launch.warming import sums_over_groups, warm_groups


@pytest.mark.parametrize(
    ("axes", "groups"),
    [
        ("data:8", {("data",)}),
        ("data:2 model:4", {("data",), ("model",), ("data", "model")}),
        ("a:2 one:1 b:2", {("a",), ("b",), ("a", "b")}),
        ("one:1", set()),
    ],
)
def test_every_set_of_axes_is_summed_over(axes, groups):
    mesh = mx.Mesh(axes)
    program, numbers = sums_over_groups(mesh)
    assert {tuple(one.axes) for one in program.explain(numbers).collectives} == groups
    warm_groups(mesh)
