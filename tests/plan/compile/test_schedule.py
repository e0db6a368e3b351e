"""What runs beside a collective in a compiler's schedule."""

import pytest

from meshax.plan.compile.hlo import compiled_collectives
from meshax.plan.compile.schedule import ARITHMETIC, NOTHING, PRODUCTS

TEXT = """
%sum (x: f32[4,16], y: f32[4,16]) -> f32[4,16] {
  %x = f32[4,16]{1,0} parameter(0)
  %y = f32[4,16]{1,0} parameter(1)
  ROOT %add = f32[4,16]{1,0} add(%x, %y)
}

%matrix (u: f32[4,16], v: f32[16,16]) -> f32[4,16] {
  %u = f32[4,16]{1,0} parameter(0)
  %v = f32[16,16]{1,0} parameter(1)
  ROOT %product = f32[4,16]{1,0} dot(%u, %v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%place (w: f32[8,16], z: f32[4,16], i: s32[]) -> f32[8,16] {
  %w = f32[8,16]{1,0} parameter(0)
  %z = f32[4,16]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  ROOT %written = f32[8,16]{1,0} dynamic-update-slice(%w, %z, %j, %j)
}

%turn (t: f32[4,16]) -> f32[4,16] {
  %t = f32[4,16]{1,0} parameter(0)
  ROOT %inner = f32[4,16]{1,0} fusion(%t, %t), kind=kLoop, calls=%matrix
}

%chain-of-nothing (p: f32[4,16]) -> f32[16,16] {
  %p = f32[4,16]{1,0} parameter(0)
  ROOT %gather = f32[16,16]{1,0} all-gather(%p), replica_groups={{0,1,2,3}}, frontend_attributes={chain_id="3"}
}

CHAINED
ENTRY %main (a: f32[4,16], b: f32[8,16], c: f32[16,16], k: s32[]) -> f32[4,16] {
  %a = f32[4,16]{1,0} parameter(0)
  %b = f32[8,16]{1,0} parameter(1)
  %c = f32[16,16]{1,0} parameter(2)
  %k = s32[] parameter(3)
  %before = f32[4,16]{1,0} fusion(%a, %c), kind=kOutput, calls=%matrix
  %start = (f32[4,16]{1,0}, f32[4,16]{1,0}, u32[]) collective-permute-start(%a), source_target_pairs={{0,1},{1,0}}
  BETWEEN
  %done = f32[4,16]{1,0} collective-permute-done(%start)
  ROOT %after = f32[4,16]{1,0} fusion(%done, %c), kind=kOutput, calls=%matrix
}
"""


@pytest.mark.parametrize(
    ("between", "beside"),
    [
        ("", NOTHING),
        ("%f = f32[8,16]{1,0} fusion(%b, %a, %k), kind=kLoop, calls=%place", NOTHING),  # it only moves
        ("%n = s32[] add(%k, %k)", NOTHING),  # a place, not an array
        ("%s = (f32[4,16]{1,0}, u32[]) collective-permute-start(%c), source_target_pairs={{0,1}}", NOTHING),
        ('%r = f32[4,16]{1,0} custom-call(%a), custom_call_target="AllocateBuffer"', NOTHING),
        ("%f = f32[4,16]{1,0} fusion(%a, %a), kind=kLoop, calls=%sum", ARITHMETIC),
        ("%e = f32[4,16]{1,0} exponential(%a)", ARITHMETIC),
        ("%f = f32[4,16]{1,0} fusion(%a, %c), kind=kOutput, calls=%matrix", PRODUCTS),
        ("%d = f32[4,16]{1,0} dot(%a, %c), lhs_contracting_dims={1}, rhs_contracting_dims={0}", PRODUCTS),
        ('%g = f32[4,16]{1,0} custom-call(%a, %c), custom_call_target="__cublas$lt$matmul"', PRODUCTS),
        ('%g = f32[4,16]{1,0} custom-call(%a), custom_call_target="tpu_custom_call"', PRODUCTS),
        ("%l = f32[4,16]{1,0} while(%a), condition=%none, body=%turn", PRODUCTS),
    ],
)
def test_between_start_and_end(between, beside):
    text = TEXT.replace("BETWEEN", between).replace("CHAINED", "")
    first = next(c for c in compiled_collectives(text) if c.kind == "permute")
    assert first.beside == beside and first.is_hidden == (beside == PRODUCTS)


@pytest.mark.parametrize(("also", "beside"), [("", NOTHING), ("add(%g, %g)", ARITHMETIC), ("dot(%p, %q)", PRODUCTS)])
def test_on_tpus_in_the_same_fusion(also, beside):
    """A gather that runs beside others stands in each of their computations: its start, and here one more."""
    line = f"\n  %more = f32[16,16]{{1,0}} {also}" if also else ""
    fused = f"""%another (p: f32[4,16]) -> f32[16,16] {{
  %p = f32[4,16]{{1,0}} parameter(0)
  %g = f32[16,16]{{1,0}} all-gather(%p), replica_groups={{{{0,1,2,3}}}}, frontend_attributes={{chain_id="3"}}{line}
}}
"""
    calls = "".join(f"%{c} = f32[16,16]{{1,0}} fusion(%a), calls=%{c}\n  " for c in ("chain-of-nothing", "another"))
    found = compiled_collectives(TEXT.replace("CHAINED", fused).replace("BETWEEN", calls))
    gathers = [c for c in found if c.kind == "all-gather"]
    assert [c.beside for c in gathers] == [beside]


def test_what_waits_is_exposed():
    text = TEXT.replace("BETWEEN", "%sync = f32[4,16]{1,0} all-reduce(%a), to_apply=%sum").replace("CHAINED", "")
    assert [c.beside for c in compiled_collectives(text)] == [NOTHING, NOTHING]
