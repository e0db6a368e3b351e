"""What an instruction is follows from the text of the compiled program; time is counted once, the rest is idle."""

import jax
import jax.numpy as jnp
import pytest

import meshax as mx
from meshax.bench.kernel_times import KINDS, Ran, kinds_of, profiled, time_by_kind

TEXT = """\
HloModule jit_step

%fused_product (p0: f32[4,4], p1: f32[4,4]) -> f32[4,4] {
  %p0 = f32[4,4]{1,0} parameter(0)
  ROOT %dot.1 = f32[4,4]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}
}

%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  ROOT %add.9 = f32[4]{0} add(%a, %b), metadata={op_name="jit(step)/while/body/add"}
}

ENTRY %main (x: f32[4,4]) -> f32[4,4] {
  %fusion.1 = f32[4,4]{1,0} fusion(%x, %y), kind=kOutput, calls=%fused_product, metadata={op_name="jit(step)/einsum"}
  %gemm.2 = (bf16[8,8]{1,0}, s8[64]{0}) custom-call(%x), custom_call_target="__cublas$gemm"
  %attend = (bf16[8]{0}) custom-call(%x), custom_call_target="__cudnn$fmhaSoftmax"
  %all-reduce.3 = f32[4]{0} all-reduce(%x), replica_groups={}
  %fusion.4 = f32[4]{0} fusion(%x), kind=kLoop, metadata={op_name="jit(step)/optimizer at loop.py:3/mul"}
  %copy.5 = f32[4]{0} copy(%x)
  %transpose_fusion.6 = f32[4]{0} fusion(%x), kind=kInput
  %while.7 = (s32[], f32[4]) while(%t), condition=%c, body=%body
  ROOT %exp.8 = f32[4]{0} exponential(%x)
}
"""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fusion.1", "products"), ("gemm.2", "products"), ("dot.1", "products"), ("attend", "attention"),
        ("all-reduce.3", "collectives"), ("fusion.4", "optimizer"), ("copy.5", "copies"),
        ("transpose_fusion.6", "copies"), ("exp.8", "elementwise"), ("add.9", "elementwise"), ("while.7", None),
    ],
)  # fmt: skip
def test_what_an_instruction_is(name, kind):
    assert kinds_of(TEXT).get(name) == kind


def test_time_is_counted_once_and_the_rest_is_idle():
    ms = 1e6
    ran = [
        Ran("gemm.2", "k", 0, 4 * ms, "a"), Ran("all-reduce.3", "k", 2 * ms, 6 * ms, "a"),
        Ran("while.7", "k", 0, 9 * ms, "a"), Ran("exp.8", "k", 7 * ms, 8 * ms, "a"),
        Ran("not of the program", "k", 0, 10 * ms, "a"), Ran("gemm.2", "k", 0, 2 * ms, "b"),
    ]  # fmt: skip
    spent = time_by_kind(ran, kinds_of(TEXT))
    wanted = {"products": 3e-3, "collectives": 1e-3, "elementwise": 0.5e-3, "idle": 3.5e-3}  # of 8 ms
    assert spent == pytest.approx(dict.fromkeys(KINDS, 0.0) | wanted)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("fusion_4", "optimizer"), ("exp_8", "elementwise"), ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_NTN", "products"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_kernel0_0", "attention"),
        ("void cudnn::fusion::convert_dq_to_16bits<true>(void const*)", "attention"), ("memcpy128", "copies"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "collectives"),
    ],
)  # fmt: skip
def test_kernels_of_a_graph_are_known_by_their_own_names(kernel, kind):
    """CUDA launches a graph of many kernels at once: the profile names the graph, not the instruction."""
    spent = time_by_kind([Ran("command_buffer_1", kernel, 0, 1e6, "a")], kinds_of(TEXT))
    assert spent == pytest.approx(dict.fromkeys(KINDS, 0.0) | {kind: 1e-3})


def test_a_profile_that_names_no_kernel_says_nothing():
    assert time_by_kind([Ran("of another program", "Memset 0", 0, 1e6, "a")], kinds_of(TEXT)) == {}


def test_a_real_profile():
    rows, cols = mx.dims(rows=256, cols=512)
    program = mx.spmd(lambda x: mx.einsum(x, x.rename(rows="others"), over=cols), mx.Mesh("x:8"), "rows:x")
    mx.Dim.declare({"others": "rows, again"})
    x = mx.put(mx.ones((rows, cols)), program.mesh, program.layout)
    program(x)
    ran = profiled(lambda: program(x).array)
    spent = time_by_kind(ran, kinds_of(program.compile(x).as_text()))
    assert spent["products"] > 0 and len({one.processor for one in ran}) == 8
    assert 0 < sum(spent.values()) < 10 and min(spent.values()) >= 0
    assert jnp.isfinite(jax.device_get(program(x).array)).all()
