"""Every op, on every mesh, under every legal layout, equals the op on whole arrays, forward and gradient."""

import pytest

import meshax as mx
from cases import GROUPS
from layouts import MESHES, check_group, sampled_layouts

AT_ONCE = 50  # layouts in one test: so the whole run spreads over workers, and a test takes minutes at most


def parts():
    """A group, a mesh and a part of the layouts for each test."""
    for group in GROUPS:
        for mesh in map(mx.Mesh, MESHES):
            layouts = sampled_layouts(mesh, group.names, group.inputs, group.layouts, group.name)
            for first in range(0, len(layouts), AT_ONCE):
                label = f"{group.name}-{mesh}" + (f"-{first}" if len(layouts) > AT_ONCE else "")
                yield pytest.param(group, mesh, layouts[first : first + AT_ONCE], id=label)


@pytest.mark.parametrize(("group", "mesh", "layouts"), list(parts()))
def test_every_layout_gives_the_same_result(group, mesh, layouts, record_property):
    group.prepare()
    checked = sum(check_group(mesh, layout, group.cases, group.inputs) for layout in layouts)
    record_property("checked", checked)
    assert checked
