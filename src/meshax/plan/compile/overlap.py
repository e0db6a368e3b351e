"""Communication beside computation: what a compiler is asked for, so that it starts collectives early.

Which collectives a program has, and what they send, does not change: only when they run. By default XLA's compiler for
TPUs runs them one after the other with everything else. `plan` says how many run beside something else.
"""

from typing import Any

# Gathers of stored parameters travel while products of the layer before are computed. On GPUs the gradients of unrolled
# layers would be one reduce-scatter after the last product; in parts of 8 MiB they leave during the backward pass.
_FLAGS: dict[str, dict[str, Any]] = {
    "tpu": {
        "xla_tpu_enable_async_collective_fusion": True,
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
        "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
        "xla_tpu_overlap_compute_collective_tc": True,
        "xla_enable_async_all_gather": True,
    },
    "gpu": {
        "xla_gpu_enable_latency_hiding_scheduler": True,
        "xla_gpu_reduce_scatter_combine_threshold_bytes": 8 * 2**20,
    },
}


def overlapping(platform: str) -> dict[str, Any]:
    """Returns XLA's flags under which collectives run beside computation, for `mx.spmd(compiler_options=)`.

    Args:
        platform: as `Mesh.platform` has it; where nothing is known to help, there are none.
    """
    return dict(_FLAGS.get(platform, {}))
