"""Kernels that are compiled while XLA still works on the program around them.

XLA compiles a kernel of Pallas where it meets it, late and in the one thread that compiles the program: those of
attention took 4 of the 10 seconds of a training step. But it compiles none twice in a process. So a thread has it
compile the same call alone as soon as it is known, and where XLA meets it, it is done.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.extend.core
from jax.interpreters import batching, mlir

_threads = ThreadPoolExecutor(2, "meshax-kernel")  # as many as there are kernels of attention
_CONFIG = "mhlo.backend_config"
_beside: Any = jax.extend.core.Primitive("beside")
_beside.multiple_results = True


def beside(kernel: Callable[..., Any], *operands: Any) -> Sequence[Any]:
    """Calls a kernel that will be compiled beside the program; in which way makes no difference to what it returns."""
    return _beside.bind(*operands, jaxpr=jax.make_jaxpr(kernel)(*map(jax.typeof, operands)))


@_beside.def_abstract_eval
def _(*_: Any, jaxpr: Any) -> Any:
    return jaxpr.out_avals


def _lower(ctx: Any, *operands: Any, jaxpr: Any) -> Any:
    """Lowers the kernel as if it were called by itself, and begins to compile it if a GPU of this process can."""
    run = jax.extend.core.jaxpr_as_fun(jaxpr)
    results = mlir.lower_fun(run, multiple_results=True)(ctx.replace(avals_in=jaxpr.in_avals), *operands)
    call = results[0].owner
    if jax.default_backend() == "gpu" and _CONFIG in call.attributes:  # else XLA compiles it where it meets it
        _threads.submit(_compile, *_described(call), jaxpr.in_avals, ctx.avals_out)
    return results


def _described(call: Any) -> tuple[str, dict[str, Any]]:
    """Returns the target of a custom call, and its attributes."""
    values = {one.name: one.attr for one in call.attributes[_CONFIG]}
    return call.attributes["call_target_name"].value, {
        name: value.value_bytes if isinstance(value, mlir.ir.StringAttr) else value.value
        for name, value in values.items()
    }


def _compile(target: str, attributes: dict[str, Any], operands: Sequence[Any], results: Sequence[Any]) -> None:
    """Compiles the call alone; what comes of it is forgotten here, and remembered by XLA."""
    alone(target, attributes, operands, results).lower().compile()


def alone(target: str, attributes: dict[str, Any], operands: Sequence[Any], results: Sequence[Any]) -> Any:
    """Returns a program, traced, that is nothing but a custom call."""
    shapes, out = ([jax.ShapeDtypeStruct(x.shape, x.dtype) for x in avals] for avals in (operands, results))
    return jax.jit(lambda *arrays: jax.ffi.ffi_call(target, out)(*arrays, **attributes)).trace(*shapes)


def _batched(operands: Sequence[Any], dims: Sequence[Any], *, jaxpr: Any) -> tuple[Sequence[Any], Sequence[int]]:
    results = jax.vmap(jax.extend.core.jaxpr_as_fun(jaxpr), dims)(*operands)
    return results, [0] * len(results)


mlir.register_lowering(_beside, _lower)
batching.primitive_batchers[_beside] = _batched
