"""Massive model parallelism, and data parallelism, and any mix, made easy.

Write a tensor program once, with named dims. One layout line decides how it is split over a mesh of processors.
"""

from .compat import widen_cpu_pool as _widen_cpu_pool
from .dims import Dim, dims
from .errors import ArgumentError, DimError, DtypeError, LayoutError, MeshaxError, MeshError, OptimizerError, ShapeError
from .layout import Layout
from .mesh import Mesh
from .ops import randomness as random
from .ops.contraction import einsum
from .ops.control import cond, remat, scan, while_loop
from .ops.creation import arange, full, ones, zeros
from .ops.elementwise import (
    abs,
    ceil,
    clip,
    cos,
    erf,
    exp,
    expm1,
    floor,
    gelu,
    isfinite,
    isnan,
    lift,
    log,
    log1p,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    negative,
    relu,
    round,
    rsqrt,
    sigmoid,
    sign,
    silu,
    sin,
    softplus,
    sqrt,
    square,
    stop_gradient,
    tanh,
    where,
)
from .ops.gradients import grad, value_and_grad
from .ops.indexing import gather, one_hot, scatter_add
from .ops.kernels import debug_print, local
from .ops.ordering import argsort, cumsum, sort, top_k
from .ops.reduction import all, any, argmax, argmin, max, mean, min, prod, sum, var
from .ops.resharding import broadcast, rename, reshape, transpose
from .ops.shaping import concat, flip, pad, shift, slice, stack, unstack, windows
from .ops.softmax import log_softmax, logsumexp, softmax, softmax_cross_entropy
from .plan.report import explain as _explain
from .program import Program, put, spmd
from .tensor import Tensor, param, tensor

_widen_cpu_pool()
Program.explain = _explain  # type: ignore[attr-defined]  # reading programs stands above making them

__version__ = "0.1.0"

__all__ = [
    "abs", "all", "any", "arange", "argmax", "argmin", "argsort", "ArgumentError", "broadcast", "ceil", "clip",
    "concat", "cond", "cos", "cumsum", "debug_print", "Dim", "DimError", "dims", "DtypeError", "einsum", "erf", "exp",
    "expm1", "flip", "floor", "full", "gather", "gelu", "grad", "isfinite", "isnan", "Layout", "LayoutError", "lift",
    "local", "log", "log1p", "log_softmax", "logical_and", "logical_not", "logical_or", "logsumexp", "max", "maximum",
    "mean", "Mesh", "MeshaxError", "MeshError", "min", "minimum", "negative", "one_hot", "ones", "OptimizerError",
    "pad", "param", "prod", "Program", "put", "random", "relu", "remat", "rename", "reshape", "round", "rsqrt",
    "scan", "scatter_add", "ShapeError", "shift", "sigmoid", "sign", "silu", "sin", "slice", "softmax",
    "softmax_cross_entropy", "softplus", "sort", "spmd", "sqrt", "square", "stack", "stop_gradient", "sum", "tanh",
    "tensor", "Tensor", "top_k", "transpose", "unstack", "value_and_grad", "var", "where", "while_loop", "windows",
    "zeros",
]  # fmt: skip
