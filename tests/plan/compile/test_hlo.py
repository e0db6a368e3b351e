"""Reading compiled HLO: what a CPU's text looks like, and a TPU's."""

import pytest

import decoder
import meshax as mx
from meshax.plan.compile.hlo import (
    CompiledCollective,
    Moved,
    by_operand,
    compiled_by_kind,
    compiled_collectives,
    differences,
    ours_by_kind,
)

MESH = "data:2 model:4"
TPU = """\
HloModule jit_run, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[]{:T(128)} parameter(0)
  %y = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%x, %y)
}

%started (p: bf16[64,8]) -> (bf16[64,8], bf16[256,8], u32[]) {
  %p = bf16[64,8]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %all-gather.1 = bf16[256,8]{1,0:T(8,128)(2,1)} all-gather(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, \
dimensions={0}, frontend_attributes={chain_id="10"}
  ROOT %start = (bf16[64,8]{1,0}, bf16[256,8]{1,0}, u32[]{:S(2)}) custom-call(%all-gather.1), \
custom_call_target="AsyncCollectiveStart"
}

%ended (q: bf16[64,8]) -> bf16[256,8] {
  %q = bf16[64,8]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %all-gather.2 = bf16[256,8]{1,0} all-gather(%q), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}, \
frontend_attributes={chain_id="10"}
}

%body (b: (s32[], f32[4,16])) -> (s32[], f32[4,16]) {
  %b = (s32[]{:T(128)}, f32[4,16]{1,0:T(4,128)S(3)}) parameter(0)
  %g = f32[4,16]{1,0:T(4,128)S(3)} get-tuple-element(%b), index=1
  %psum = f32[4,16]{1,0:T(4,128)S(3)} all-reduce(%g), replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %t = (s32[]{:T(128)}, f32[4,16]{1,0}) tuple(%g, %psum)
}

%condition (c: (s32[], f32[4,16])) -> pred[] {
  %six = s32[]{:T(128)} constant(6), metadata={op_name="jit(f)"}
  %c = (s32[]{:T(128)}, f32[4,16]{1,0:T(4,128)S(3)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%c), index=0
  ROOT %less = pred[]{:T(512)} compare(%i, %six), direction=LT
}

ENTRY %main (a: bf16[64,8], d: f32[4,16]) -> f32[4,16] {
  %a = bf16[64,8]{1,0:T(8,128)(2,1)} parameter(0)
  %d = f32[4,16]{1,0:T(4,128)} parameter(1)
  %async-start = (bf16[64,8]{1,0}, bf16[256,8]{1,0}, u32[]{:S(2)}) fusion(%a), kind=kCustom, calls=%started
  %async-done = bf16[256,8]{1,0} fusion(%async-start), kind=kCustom, calls=%ended
  %permute-start = (f32[4,16]{1,0}, f32[4,16]{1,0}, u32[]{:S(2)}) collective-permute-start(%d), \
source_target_pairs={{0,4},{1,5}}
  %permute-done = f32[4,16]{1,0} collective-permute-done(%permute-start)
  %tuple = (s32[]{:T(128)}, f32[4,16]{1,0}) tuple(%a, %d)
  %loop = (s32[]{:T(128)}, f32[4,16]{1,0}) while(%tuple), condition=%condition, body=%body
  %merged = (f32[4,16]{1,0}, /*index=1*/bf16[64,8]{1,0}) all-reduce(%d, /*index=1*/%a), \
replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
  ROOT %last = f32[4,16]{1,0} get-tuple-element(%merged), index=0
}
"""


def test_a_tpus_text():
    """A gather in two fusions is one; a loop without a noted trip count turns as often as its counter is let."""
    assert compiled_collectives(TPU) == [
        CompiledCollective("all-gather", (("bf16", (64, 8)),), 4, 1),
        CompiledCollective("permute", (("f32", (4, 16)),), 0, 1),
        CompiledCollective("all-reduce", (("f32", (4, 16)),), 4, 6),
        CompiledCollective("all-reduce", (("f32", (4, 16)), ("bf16", (64, 8))), 8, 1),
    ]


def test_sums():
    found = compiled_collectives(TPU)
    assert compiled_by_kind(found)["all-reduce"] == Moved(operations=7, tensors=8, bytes=7 * 256 + 1024)
    assert by_operand(found)["all-reduce"] == {64: 7, 512: 1}
    assert found[0].as_dict() == {
        "kind": "all-gather", "operands": ["bf16[64,8]"], "bytes": 1024, "group": 4, "count": 1, "beside": "nothing"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("replica_groups={{0,1},{2,3}}", 2),
        ("replica_groups=[2,4]<=[8]", 4),
        ("replica_groups=mesh['data'=2,'model'=4] {'data','model'}", 8),
        ("replica_groups=mesh['a'=4,'b'=1,'c'=2], device_ids=([2,4]T(1,0)) {'a'}, dimensions={0}", 4),
    ],
)
def test_groups(groups, size):
    text = TPU.replace("replica_groups=[2,4]<=[8]", groups)
    assert [c.group for c in compiled_collectives(text) if c.count == 6] == [size]


@pytest.mark.parametrize(
    ("old", "new", "turns"),
    [
        ("condition=%condition, body", 'condition=%none, backend_config={"known_trip_count":{"n":"9"}}, body', 9),
        ("direction=LT", "direction=NE", 1),
    ],
)
def test_trips(old, new, turns):
    counts = [c.count for c in compiled_collectives(TPU.replace(old, new)) if c.kind == "all-reduce"]
    assert counts == [turns, 1]


def test_no_text_has_no_collectives():
    assert compiled_collectives("") == []


@pytest.mark.parametrize("layout", ["batch:data", "batch:data heads:model d_ff:model vocab:model"])
def test_a_cpu_program_moves_what_the_report_says(layout):
    program = mx.spmd(decoder.sgd, mx.Mesh(MESH), layout)
    args = decoder.init(), *decoder.tokens()
    ours = ours_by_kind(program.explain(*args).collectives)
    compiled = compiled_by_kind(compiled_collectives(program.compile(*args).as_text()))
    assert {kind: moved.tensors for kind, moved in ours.items()} == {k: m.tensors for k, m in compiled.items()}
    assert {kind: moved.bytes for kind, moved in ours.items()} == {k: m.bytes for k, m in compiled.items()}
    assert 0 < compiled["all-reduce"].operations < ours["all-reduce"].operations


def none():
    return ours_by_kind([])


def test_differences_in_words():
    ours = none() | {"all-reduce": Moved(2, 2, 80), "reduce-scatter": Moved(3, 3, 90), "all-gather": Moved(4, 4, 40)}
    compiled = none() | {"all-reduce": Moved(2, 5, 170), "all-gather": Moved(3, 3, 30), "permute": Moved(2, 2, 8)}
    assert differences(ours, compiled) == [
        "all-reduce: 5 tensors travel in 2 operations: the compiler merged them.",
        "reduce-scatter: 3 became an all-reduce and a slice.",
        "all-gather: 1 fewer: what was there twice, or not needed, is gone.",
        "permute: 2 are the compiler's own, parts of other collectives.",
    ]
    narrower = none() | {"all-reduce": Moved(2, 2, 40)}
    assert differences(none() | {"all-reduce": Moved(2, 2, 80)}, narrower) == [
        "all-reduce: 40 bytes fewer: some operands are smaller, or in a narrower dtype."
    ]
    assert differences(ours, ours) == []
