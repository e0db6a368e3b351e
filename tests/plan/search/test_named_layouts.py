import pytest

import decoder
import meshax as mx
from meshax.plan.search.named_layouts import NAMES, find_layout, sizes_of
from messages import pinned

MESH = mx.Mesh("data:2 model:4", abstract=True)
USUAL = {"batch", "length", "d_model", "heads", "d_ff", "vocab"}
MODEL = "heads:model d_ff:model vocab:model"


@pytest.mark.parametrize(
    ("name", "layout"),
    {
        "none": mx.Layout(),
        "data": mx.Layout("batch:data+model"),
        "model": mx.Layout("heads:data+model d_ff:data+model vocab:data+model"),
        "data+model": mx.Layout(f"batch:data {MODEL}"),
        "fsdp": mx.Layout("batch:data+model", params="d_model:data+model", optimizer="d_model:data+model"),
        "sequence": mx.Layout(f"batch:data {MODEL} length:model"),
    }.items(),
)
def test_names(name, layout):
    assert find_layout(name, MESH, known=USUAL) == layout


def test_only_dims_that_exist_have_rules():
    assert find_layout("data+model", MESH, known={"batch", "d_ff"}) == mx.Layout("batch:data d_ff:model")
    stored = find_layout("fsdp", MESH, params="hidden:data", optimizer="hidden:data", known={"batch", "hidden"})
    assert stored == mx.Layout("batch:data+model", params="hidden:data", optimizer="hidden:data")


def test_axes_of_any_name():
    assert find_layout("data", mx.Mesh("rows:2 cols:4", abstract=True), known=USUAL) == mx.Layout("batch:rows+cols")


@pytest.mark.parametrize(
    ("kv_heads", "heads", "split"),
    [(8, 4, "kv_heads"), (4, 4, "kv_heads"), (2, 8, "heads"), (3, 8, "heads"), (6, 2, "kv_heads")],
)
def test_grouped_heads_are_split_where_they_divide_better(kv_heads, heads, split):
    sizes = {"kv_heads": kv_heads, "heads": heads, "d_ff": 64}
    layout = find_layout("data+model", MESH, known={*USUAL, "kv_heads"}, sizes=sizes)
    assert layout == mx.Layout(f"batch:data {split}:model d_ff:model vocab:model")
    assert find_layout("data", MESH, known=USUAL, sizes=sizes) == mx.Layout("batch:data+model")


def test_sizes_of_arguments():
    rows, cols = mx.dims(rows=3, cols=5)
    assert sizes_of(({"w": mx.zeros((rows, cols))}, 2.0, mx.zeros(rows))) == {"rows": 3, "cols": 5}


def test_rules_and_roles():
    assert find_layout("batch:data", MESH, "d_model:model") == mx.Layout("batch:data", params="d_model:model")
    made = find_layout("fsdp", MESH, params="d_model:data", known=USUAL)
    assert made == mx.Layout("batch:data+model", params="d_model:data", optimizer="d_model:data+model")
    assert find_layout("", MESH) == mx.Layout()


@pytest.mark.parametrize("name", NAMES)
def test_each_fits_a_decoder(name):
    """Every name gives a layout under which the decoder can be traced, and all but none communicate."""
    layout = find_layout(name, MESH, known=set(USUAL))
    report = mx.spmd(decoder.sgd, MESH, layout).explain(decoder.init(), *decoder.tokens())
    assert bool(report.collectives) == (name != "none")


test_messages = pinned(
    {
        "an unknown name": (
            mx.LayoutError,
            lambda: find_layout("dta", MESH),
            """
            there is no layout named 'dta'.
              rule: a layout is a name, or rules such as "batch:data heads:model".
              fix: did you mean "data"?
            """,
        ),
        "no dim to split": (
            mx.LayoutError,
            lambda: find_layout("data", MESH, known={"pixels"}),
            """
            the layout 'data' splits no dim of this program.
              values: it is: batch over all axes
              rule: a name stands for rules over dims of these names.
              fix: write rules for the dims that there are, such as "rows:data".
            """,
        ),
        "nothing to store by": (
            mx.LayoutError,
            lambda: find_layout("fsdp", MESH, known={"batch", "pixels"}),
            """
            the layout 'fsdp' stores by slices of 'd_model', which this program does not have.
              values: it is: batch over all axes; parameters and optimizer state stored by slices of d_model
              rule: a name stands for rules over dims of these names.
              fix: write rules for the dims that there are, such as "rows:data".
            """,
        ),
        "other axes": (
            mx.LayoutError,
            lambda: find_layout("sequence", mx.Mesh("rows:2", abstract=True), known=USUAL),
            """
            the layout 'sequence' needs the mesh axes data and model.
              values: Mesh(rows:2, abstract) has no data and no model
              fix: name the axes so, as in "data:2 model:4"; or choose data, model or fsdp, or write rules.
            """,
        ),
    }
)
