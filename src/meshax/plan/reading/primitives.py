"""What is known of JAX's primitives: one table, for all who read a jaxpr.

A primitive that the table does not have counts as elementwise. tests/plan/reading/test_primitives.py walks through all
operations and models, and fails where one is met.
"""

from dataclasses import dataclass, replace
from functools import cache

from ...checking.rules import EACH_ALONE, ELEMENTWISE, WATCHING


@dataclass(frozen=True)
class Traits:
    """What one primitive does."""

    fusion: str = "elementwise"
    """How a compiler treats it: "view" (the same memory, or nothing at all), "free" (made on the fly wherever it is
    needed), "elementwise", "dear" (elementwise, and too dear to compute again for every use), "reduction", or "whole"
    (a kernel of its own, which reads and writes memory)."""
    linear: str = ""
    """How a pending sum gets through it: "moved" (the result is as pending), "scaled" (if the other operand is a
    number), "added" (if the other operand is as pending), "cast"; or not at all."""
    reduces: str = ""
    """What a reduction gives of slices: "sum" (a pending sum) or "extremum" (nothing, before they are compared)."""
    collective: str = ""  # its kind, if it is one
    joins: bool = False  # whether all processors have the same after that collective
    is_product: bool = False
    is_scatter: bool = False
    is_known: bool = True

    @property
    def is_all_reduced_sum(self) -> bool:
        """Whether it sums over processors, and all of them have the sum."""
        return self.collective == "all-reduce" and self.reduces == "sum"


KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "permute")
# What some processors do element by element, however fast they read and write: see `Kernel.work`.
WORK = ("transposed", "reduced", "dear")
CONTROL = frozenset({"scan", "while", "cond"})  # the primitives whose programs stay nested
CUDNN_FORWARD, CUDNN_BACKWARD = "dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper"
# Kernels of attention, cuDNN's and ours, and how many matrix products each stands for.
ATTENTION = {
    CUDNN_FORWARD: 2,
    CUDNN_BACKWARD: 5,
    "short_attention_forward": 2,
    "short_attention_backward": 5,
}
# Those of JAX's for TPUs that do not say it themselves, by the scope they are called in.
FLASH = {"/flash_mha_bwd_dkv_": 4, "/flash_mha_bwd_dq_": 3}

_TABLE: dict[str, Traits] = {}


def _have(names: str, **traits: object) -> None:
    """Adds traits to some primitives."""
    for name in names.split():
        _TABLE[name] = replace(_TABLE.get(name, Traits()), **traits)  # type: ignore[arg-type]


_have(" ".join(sorted(ELEMENTWISE | EACH_ALONE | WATCHING)))
_have(
    "transpose rev pad concatenate slice dynamic_slice split stack unstack tile random_bits random_fold_in random_split"
)
_have("reshape squeeze expand_dims pvary pcast stop_gradient name copy optimization_barrier named", fusion="view")
_have("reduce_precision bitcast_convert_type", fusion="view")
_have(
    "iota axis_index broadcast_in_dim create_token random_wrap random_unwrap random_seed empty empty2 zeros_like",
    fusion="free",
)
_have("exp exp2 expm1 log log1p tanh logistic erf erf_inv rsqrt sqrt cbrt pow sin cos tan atan2", fusion="dear")
_have("reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor reduce", fusion="reduction")
_have("argmax argmin", fusion="reduction")
_have("dot_general ragged_dot_general conv_general_dilated", fusion="whole", is_product=True)
_have("scatter scatter-add scatter_add scatter-mul scatter_mul scatter_min scatter_max", fusion="whole")
_have("scatter-sub scatter-min scatter-max", fusion="whole")
_have("gather sort top_k approx_top_k cumsum cumprod cummax cummin cumlogsumexp fft threefry2x32", fusion="whole")
_have("dynamic_update_slice reduce_window reduce_window_sum reduce_window_max", fusion="whole")
_have("select_and_scatter_add select_and_gather_add", fusion="whole")
_have("cholesky lu qr eigh svd triangular_solve", fusion="whole")
_have("scan while cond pallas_call mpmd_map custom_call ffi_call", fusion="whole")
_have(" ".join(ATTENTION), fusion="whole")
_have("scatter scatter-add scatter_add scatter_mul scatter_min scatter_max dynamic_update_slice", is_scatter=True)

_have("transpose reshape squeeze expand_dims broadcast_in_dim neg pvary pcast name named copy pad", linear="moved")
_have("mul div", linear="scaled")
_have("add add_any sub", linear="added")
_have("convert_element_type", linear="cast")
_have("reduce_sum psum psum_invariant unreduced_psum", reduces="sum")
_have("reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin", reduces="extremum")

_have("psum psum_invariant pmax pmin unreduced_psum", fusion="whole", collective="all-reduce", joins=True)
_have("all_gather all_gather_invariant all_gather_reduced", fusion="whole", collective="all-gather", joins=True)
_have("reduce_scatter unreduced_reduce_scatter", fusion="whole", collective="reduce-scatter")
_have("all_to_all", fusion="whole", collective="all-to-all")
_have("ppermute", fusion="whole", collective="permute")


@cache
def traits_of(name: str) -> Traits:
    """Returns what is known of a primitive; of one that nobody has met yet, that it is elementwise."""
    return _TABLE.get(name, Traits(is_known=False))
