"""Every op, on every mesh, under every legal layout, equals the op on whole arrays, forward and gradient."""

import itertools

import pytest

import meshax as mx
from cases import GROUPS
from layouts import MESHES, WHOLE, check_group, sampled_layouts

AT_ONCE = 50  # layouts in one test: so the whole run spreads over workers, and a test takes minutes at most
SAMPLED = 1  # meshes of a group in the sample, with one layout each


def parts():
    """A group, a mesh and a part of the layouts for each test of the whole run."""
    for group in GROUPS:
        for mesh in map(mx.Mesh, MESHES):
            layouts = sampled_layouts(mesh, group.names, group.inputs, None, group.name)
            for first in range(0, len(layouts), AT_ONCE):
                label = f"{group.name}-{mesh}" + (f"-{first}" if len(layouts) > AT_ONCE else "")
                yield pytest.param(group, mesh, layouts[first : first + AT_ONCE], id=label)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("group", "mesh", "layouts"), list(parts()) if WHOLE else [])
def test_every_layout_gives_the_same_result(group, mesh, layouts, record_property):
    group.prepare()
    checked = sum(len(check_group(mesh, layout, group.cases, group.inputs)) for layout in layouts)
    record_property("checked", checked)
    assert checked


def sampled_pairs(group):
    """Returns meshes of more than one processor, the next group's are others, in turns, each time with a layout."""
    meshes = [mx.Mesh(MESHES[1 + (GROUPS.index(group) + n) % (len(MESHES) - 1)]) for n in range(SAMPLED)]
    columns = [
        [(mesh, x) for x in sampled_layouts(mesh, group.names, group.inputs, 20, group.name) if x.rules]
        for mesh in meshes
    ]
    return [pair for row in itertools.zip_longest(*columns) for pair in row if pair]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_a_sample_of_layouts_gives_the_same_result(group, record_property):
    """Each mesh with one layout, and then as many more as it takes until every op was legal once."""
    group.prepare()
    checked, left = 0, {case.name for case in group.cases}
    for number, (mesh, layout) in enumerate(sampled_pairs(group)):
        cases = [case for case in group.cases if number < SAMPLED or case.name in left]
        legal = check_group(mesh, layout, cases, group.inputs)
        checked, left = checked + len(legal), left - legal
        if not left and number + 1 >= SAMPLED:
            break
    record_property("checked", checked)
    assert not left
