"""Rules, the placements that follow from them, and the rules that are refused."""

import threading

import jax
import pytest

import meshax as mx
from meshax.layout import OUTSIDE, Placement, Setting, block_size, current, is_inside
from messages import pinned

batch, length, hidden = mx.dims(batch=6, length=4, hidden=10)
mesh = mx.Mesh("rows:2 cols:4")


@pytest.mark.parametrize(
    "rules",
    [
        "batch:rows hidden:cols",
        "batch:rows, hidden:cols",
        "batch:rows;hidden:cols",
        {"batch": "rows", "hidden": "cols"},
        {"batch": ["rows"], "hidden": ("cols",)},
        {batch: "rows", hidden: "cols"},
    ],
)
def test_rules_are_parsed(rules):
    layout = mx.Layout(rules)

    assert layout.rules == (("batch", ("rows",)), ("hidden", ("cols",)))
    assert layout == mx.Layout("batch:rows hidden:cols")
    assert hash(layout) == hash(mx.Layout("batch:rows hidden:cols"))


def test_a_dim_over_several_axes_major_first():
    layout = mx.Layout("batch:cols+rows")

    assert layout.rules == (("batch", ("cols", "rows")),)
    assert layout == mx.Layout({"batch": ("cols", "rows")}) == mx.Layout({"batch": "cols+rows"})
    assert layout != mx.Layout("batch:rows+cols")


def test_no_rules():
    assert mx.Layout() == mx.Layout("") == mx.Layout({})


def test_the_order_of_rules_does_not_matter():
    layout = mx.Layout("batch:rows hidden:cols", params="length:rows hidden:rows", optimizer="batch:cols length:rows")
    turned = mx.Layout("hidden:cols batch:rows", params="hidden:rows length:rows", optimizer="length:rows batch:cols")

    assert layout == turned and hash(layout) == hash(turned)
    assert Setting(mesh, layout) == Setting(mesh, turned)
    assert layout != "batch:rows hidden:cols"


def test_layouts_of_other_roles_differ():
    assert mx.Layout("batch:rows", params="hidden:rows") != mx.Layout("batch:rows")
    assert mx.Layout("batch:rows", params="hidden:rows") != mx.Layout("batch:rows", optimizer="hidden:rows")


def test_repr_can_be_read_back():
    layout = mx.Layout("batch:rows+cols", params="hidden:rows length:cols", optimizer="hidden:cols")

    assert repr(layout) == 'Layout("batch:rows+cols", params="hidden:rows length:cols", optimizer="hidden:cols")'
    assert eval(repr(layout), {"Layout": mx.Layout}) == layout
    ringed = mx.Layout("batch:rows", rings=("rows", "cols"))
    assert repr(ringed) == 'Layout("batch:rows", rings="rows+cols")'
    assert eval(repr(ringed), {"Layout": mx.Layout}) == ringed == mx.Layout("batch:rows", rings="cols+rows")
    assert ringed != mx.Layout("batch:rows") and hash(ringed) != hash(mx.Layout("batch:rows"))


def test_a_role_adds_its_axes_behind_the_main_ones():
    layout = mx.Layout("batch:rows", params="batch:cols hidden:rows")

    assert layout.for_role(None) == {"batch": ("rows",)}
    assert layout.for_role("param") == {"batch": ("rows", "cols"), "hidden": ("rows",)}
    assert layout.for_role("optimizer") == layout.for_role(None)


@pytest.mark.parametrize(("size", "parts", "block"), [(8, 4, 2), (10, 4, 3), (3, 4, 1), (1, 8, 1), (7, 1, 7)])
def test_blocks_of_an_uneven_dim(size, parts, block):
    assert block_size(size, parts) == block


@pytest.mark.parametrize(
    ("rules", "placement", "local", "padded"),
    [
        ("", ((), (), ()), (6, 4, 10), (6, 4, 10)),
        ("batch:rows hidden:cols", (("rows",), (), ("cols",)), (3, 4, 3), (6, 4, 12)),
        ("hidden:rows+cols", ((), (), ("rows", "cols")), (6, 4, 2), (6, 4, 16)),
        ("length:cols batch:rows", (("rows",), ("cols",), ()), (3, 1, 10), (6, 4, 10)),
    ],
)
def test_placements_follow_from_names(rules, placement, local, padded):
    setting, shape = Setting(mesh, mx.Layout(rules)), (batch, length, hidden)

    assert setting.placement(shape) == placement
    assert setting.placement(shape).local_shape == local
    assert setting.placement(shape).padded_shape == padded


def test_a_placement_knows_its_dims_and_its_mesh():
    placement = Setting(mesh, mx.Layout("batch:rows hidden:cols")).placement((batch, length, hidden))

    assert placement.axes == {"rows", "cols"}
    assert placement.of(hidden) == ("cols",) and placement.of(length) == ()
    assert placement.over((hidden, length)) == ("cols",)
    assert [placement.count(dim) for dim in placement.dims] == [2, 1, 4]
    assert [placement.block(dim) for dim in placement.dims] == [3, 4, 3]
    assert placement.uneven == (hidden,)
    assert placement.parts == (("batch", 6, ("rows",)), None, ("hidden", 10, ("cols",)))
    assert placement.spec == jax.sharding.PartitionSpec(("rows",), (), ("cols",))
    assert placement.whole((hidden,)) == (("rows",), (), ())
    assert placement.stacked(hidden) == ((), ("rows",), (), ("cols",))


def test_placements_that_split_alike_are_equal():
    setting = Setting(mesh, mx.Layout("batch:rows length:rows"))

    assert setting.placement((batch,)) == setting.placement((length,)) == Placement((hidden,), mesh, [("rows",)])
    assert setting.placement((batch,)) != setting.whole((batch,))


def test_outside_there_is_one_processor_without_rules():
    placement = current().placement((batch, hidden), "param")

    assert current() is OUTSIDE and not is_inside()
    assert not current().has_rules and current().mesh.size == 1 and not current().mesh.axes
    assert placement == ((), ()) and placement.local_shape == placement.padded_shape == (6, 10)
    assert current().mesh.platform == jax.default_backend()
    assert current().mesh.device_kind == jax.devices()[0].device_kind


def test_a_role_has_its_own_placement():
    setting = Setting(mesh, mx.Layout("batch:rows", params="hidden:cols"))

    assert setting.placement((batch, hidden)) == (("rows",), ())
    assert setting.placement((batch, hidden), "param") == (("rows",), ("cols",))


def test_a_layout_is_current_only_while_a_program_is_traced():
    seen = []
    mx.spmd(lambda x: seen.append((current(), is_inside())) or x, mesh, "batch:rows")(mx.zeros(batch))

    assert seen == [(Setting(mesh, mx.Layout("batch:rows")), True)]
    assert current() is OUTSIDE


def test_a_layout_is_current_in_its_own_thread_only():
    seen = []

    def look(x):
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
        return x

    mx.spmd(look, mesh, "batch:rows")(mx.zeros(batch))

    assert seen == [OUTSIDE]


# like no other name in these tests, so that only it is near a misspelling of it
mx.Dim.declare({"zebra_stripes": "nothing"})


def split(layout, fn, *args):
    return mx.spmd(fn, mesh, layout)(*args)


def checked(rules, **roles):
    return mx.spmd(lambda: None, mesh, mx.Layout(rules, **roles))


MISTAKES = {
    "neither a string nor a dict": (
        mx.LayoutError,
        lambda: mx.Layout(["batch:rows"]),
        """
        a layout is a string or a dict, not list.
          values: ['batch:rows']
          fix: write for example mx.Layout("batch:rows hidden:cols").
        """,
    ),
    "a part without an axis": (
        mx.LayoutError,
        lambda: mx.Layout("batch:rows hidden"),
        """
        'hidden' is not a part of a layout.
          values: 'batch:rows hidden'
          rule: each part is name:value.
          fix: write for example mx.Layout("batch:rows hidden:cols").
        """,
    ),
    "an axis that is no name": (
        mx.LayoutError,
        lambda: mx.Layout("batch:rows+"),
        """
        'rows+' does not name mesh axes for dim 'batch'.
          values: 'batch:rows+'
          fix: write for example mx.Layout("batch:rows hidden:cols").
        """,
    ),
    "no axes": (
        mx.LayoutError,
        lambda: mx.Layout({"batch": ()}),
        """
        () does not name mesh axes for dim 'batch'.
          values: {'batch': ()}
          fix: write for example mx.Layout("batch:rows hidden:cols").
        """,
    ),
    "an axis that is a number": (
        mx.LayoutError,
        lambda: mx.Layout({"batch": 3}),
        """
        3 does not name mesh axes for dim 'batch'.
          values: {'batch': 3}
          fix: write for example mx.Layout("batch:rows hidden:cols").
        """,
    ),
    "an axis that is nothing": (
        mx.LayoutError,
        lambda: mx.Layout("hidden:cols", params={"batch": None}),
        """
        None does not name mesh axes for dim 'batch'.
          values: {'batch': None}
          fix: write for example mx.Layout("batch:rows hidden:cols").
        """,
    ),
    "two rules for a dim": (
        mx.LayoutError,
        lambda: mx.Layout("batch:rows hidden:cols batch:cols"),
        """
        dim 'batch' has two rules.
          values: 'batch:rows hidden:cols batch:cols'
          rule: a dim has one rule.
          fix: to split it over several axes, join them: "batch:rows+cols".
        """,
    ),
    "an axis twice for a dim": (
        mx.LayoutError,
        lambda: mx.Layout("batch:rows+rows"),
        """
        dim 'batch' is split twice over one axis.
          values: 'batch:rows+rows'
          fix: name each axis once.
        """,
    ),
    "an unknown axis": (
        mx.LayoutError,
        lambda: checked("batch:row"),
        """
        the layout does not fit the mesh or the program.
            "batch:row": no mesh axis 'row'; did you mean "rows"?
          values: Layout("batch:row") on Mesh(rows:2 cols:4)
          rule: a rule names a dim that exists and axes of the mesh.
          fix: correct or remove these rules.
        """,
    ),
    "an unknown axis like none": (
        mx.LayoutError,
        lambda: checked("batch:data"),
        """
        the layout does not fit the mesh or the program.
            "batch:data": no mesh axis 'data'; known names: cols, rows.
          values: Layout("batch:data") on Mesh(rows:2 cols:4)
          rule: a rule names a dim that exists and axes of the mesh.
          fix: correct or remove these rules.
        """,
    ),
    "an unknown dim": (
        mx.LayoutError,
        lambda: checked("zebra_stripe:rows"),
        """
        the layout does not fit the mesh or the program.
            "zebra_stripe:rows": no dim 'zebra_stripe' was ever made; did you mean "zebra_stripes"?
          values: Layout("zebra_stripe:rows") on Mesh(rows:2 cols:4)
          rule: a rule names a dim that exists and axes of the mesh.
          fix: correct or remove these rules.
        """,
    ),
    "all that is unknown": (
        mx.LayoutError,
        lambda: checked("batch:row+clos hidden:cols", params="zebra_stripe:rows", optimizer="zebra_strip:rows"),
        (
            "the layout does not fit the mesh or the program.\n"
            '    "batch:row+clos": no mesh axis \'row\'; did you mean "rows"?\n'
            '    "batch:row+clos": no mesh axis \'clos\'; did you mean "cols"?\n'
            '    "zebra_stripe:rows": no dim \'zebra_stripe\' was ever made; did you mean "zebra_stripes"?\n'
            '    "zebra_strip:rows": no dim \'zebra_strip\' was ever made; did you mean "zebra_stripes"?\n'
            '  values: Layout("batch:row+clos hidden:cols", params="zebra_stripe:rows", '
            'optimizer="zebra_strip:rows") on Mesh(rows:2 cols:4)\n'
            "  rule: a rule names a dim that exists and axes of the mesh.\n"
            "  fix: correct or remove these rules."
        ),
    ),
    "a role that repeats an axis": (
        mx.LayoutError,
        lambda: checked("batch:rows+cols", params="batch:cols"),
        """
        the layout does not fit the mesh or the program.
            "batch:rows+cols+cols": the main rule and the one for param name the same axis.
          values: Layout("batch:rows+cols", params="batch:cols") on Mesh(rows:2 cols:4)
          rule: a rule names a dim that exists and axes of the mesh.
          fix: correct or remove these rules.
        """,
    ),
    "two dims of an argument over one axis": (
        mx.LayoutError,
        lambda: split("batch:rows length:rows", lambda x: x, mx.zeros((batch, length, hidden))),
        """
        dims of one tensor are split over the same mesh axis: 'batch' and 'length' over 'rows'.
          values: [batch:6/rows, length:4/rows, hidden:10] under Layout("batch:rows length:rows")
          rule: an axis splits at most one of the dims that meet in a tensor.
          fix: split one of them over another axis, or rename it where they meet, to a name without a rule.
        """,
    ),
    "two dims of a parameter over one axis": (
        mx.LayoutError,
        lambda: mx.put(mx.param(mx.zeros((batch, hidden))), mesh, mx.Layout("batch:rows", params="hidden:rows")),
        """
        dims of one tensor are split over the same mesh axis: 'batch' and 'hidden' over 'rows'.
          values: [batch:6/rows, hidden:10/rows] under Layout("batch:rows", params="hidden:rows")
          rule: an axis splits at most one of the dims that meet in a tensor.
          fix: split one of them over another axis, or rename it where they meet, to a name without a rule.
        """,
    ),
    "two dims of a new tensor over one axis": (
        mx.LayoutError,
        lambda: split("batch:cols length:rows+cols", lambda: mx.zeros((batch, length))),
        """
        dims of one tensor are split over the same mesh axis: 'batch' and 'length' over 'cols'.
          values: [batch:6/cols, length:4/rows+cols] under Layout("batch:cols length:rows+cols")
          rule: an axis splits at most one of the dims that meet in a tensor.
          fix: split one of them over another axis, or rename it where they meet, to a name without a rule.
        """,
    ),
    "two dims that meet over one axis": (
        mx.LayoutError,
        lambda: split("batch:rows length:rows", lambda a, b: a * b, mx.zeros(batch), mx.zeros((length, hidden))),
        """
        dims of the operands of one operation are split over the same mesh axis: 'batch' and 'length' over 'rows'.
          values: [batch:6/rows] and [length:4/rows, hidden:10] under Layout("batch:rows length:rows")
          rule: an axis splits at most one of the dims that meet in a tensor.
          fix: split one of them over another axis, or rename it where they meet, to a name without a rule.
        """,
    ),
    "two dims that meet in a product over one axis": (
        mx.LayoutError,
        lambda: split(
            "batch:rows length:rows",
            lambda a, b: mx.einsum(a, b, out=(batch, length)),
            mx.zeros((batch, hidden)),
            mx.zeros((hidden, length)),
        ),
        """
        dims of the operands of one operation are split over the same mesh axis: 'batch' and 'length' over 'rows'.
          values: [batch:6/rows, hidden:10] and [hidden:10, length:4/rows] under Layout("batch:rows length:rows")
          rule: an axis splits at most one of the dims that meet in a tensor.
          fix: split one of them over another axis, or rename it where they meet, to a name without a rule.
        """,
    ),
    "three dims over two axes": (
        mx.LayoutError,
        lambda: split(
            "batch:rows+cols length:rows hidden:cols",
            lambda a, b, c: mx.where(a, b, c),
            mx.zeros(batch, bool),
            mx.zeros(length),
            mx.zeros(hidden),
        ),
        (
            "dims of the operands of one operation are split over the same mesh axis: 'length' and 'batch' over "
            "'rows'; 'hidden' and 'batch' over 'cols'.\n"
            "  values: [length:4/rows] and [hidden:10/cols] and [batch:6/rows+cols] under "
            'Layout("batch:rows+cols length:rows hidden:cols")\n'
            "  rule: an axis splits at most one of the dims that meet in a tensor.\n"
            "  fix: split one of them over another axis, or rename it where they meet, to a name without a rule."
        ),
    ),
    "a new name whose axis is taken": (
        mx.LayoutError,
        lambda: split("batch:rows length:rows", lambda x: x.rename(hidden="length"), mx.zeros((batch, hidden))),
        """
        dims of one tensor are split over the same mesh axis: 'batch' and 'length' over 'rows'.
          values: [batch:6/rows, length:10/rows] under Layout("batch:rows length:rows")
          rule: an axis splits at most one of the dims that meet in a tensor.
          fix: split one of them over another axis, or rename it where they meet, to a name without a rule.
        """,
    ),
}


@pytest.mark.parametrize(
    ("rules", "name"),
    [({3: "rows"}, "3"), ({None: "rows"}, "None"), ("3:rows", "'3'"), ({"the batch": "rows"}, "'the batch'")],
    ids=str,
)
def test_a_dim_that_is_no_name_is_refused(rules, name):
    with pytest.raises(mx.LayoutError) as raised:
        mx.Layout(rules)
    assert str(raised.value) == (
        f"{name} is not the name of a dim.\n"
        f"  values: {rules!r}\n"
        '  fix: write for example mx.Layout("batch:rows hidden:cols").'
    )


test_messages = pinned(MISTAKES)
