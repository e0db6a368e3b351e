"""Every op, on every mesh, under every legal layout, equals the op on whole arrays, forward and gradient."""

import pytest

import meshax as mx
from cases import GROUPS
from layouts import MESHES, check_group, sampled_layouts


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_every_layout_gives_the_same_result(group, mesh, record_property):
    group.prepare()
    mesh = mx.Mesh(mesh)
    layouts = sampled_layouts(mesh, group.names, group.inputs, group.layouts, group.name)
    checked = sum(check_group(mesh, layout, group.cases, group.inputs) for layout in layouts)
    record_property("checked", checked)
    assert checked
