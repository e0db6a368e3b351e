"""The way out: any JAX function on local slices, and printing from inside a program."""

from collections.abc import Callable
from typing import Any

import jax

from .. import collectives
from ..compat import Array, typed_outputs
from ..dim import DimsLike, as_list, find, show, union
from ..errors import LayoutError, ShapeError
from ..layout import current
from ..tensors import Tensor, check_tensor, is_tensor, settle
from ..transfer import fill_padding
from .creation import sized_dims
from .foreign import call_on_slices
from .operands import compute, describe, once_outside
from .resharding import unsplit

__all__ = ["debug_print", "local"]


def local(fn: Callable[..., Array], *xs: Tensor, out: DimsLike, splittable: DimsLike = ()) -> Tensor:
    """Calls a function of arrays, a Pallas or cuDNN kernel or an FFT, on the local slices.

    Args:
        fn: takes the arrays of `xs`, in the order of their dims, and returns the array of the result.
        *xs: the tensors.
        out: the dims of the result: names of dims of `xs`, or new dims.
        splittable: dims along which `fn` works on any slice alike. Padding of an uneven one repeats its first element
            (or that of the slice); what `fn` makes of it reaches neither the result nor gradients.

    Communication: none; a pending sum is reduced first. If some processors hold nothing but padding, an all-reduce of
    the first element of that dim.
    """
    if not xs:
        raise ShapeError("mx.local needs at least one tensor.", fix="pass the tensors whose slices the function takes.")
    for x in xs:
        check_tensor(x, "mx.local")
    every = union(*(x.dims for x in xs))
    known = {dim.name: dim for dim in every}
    result = sized_dims([known.get(d, d) if isinstance(d, str) else d for d in as_list(out)], "local")
    either = tuple(({dim.name: dim for dim in result} | known).values())
    may_split = {find(either, d).name for d in as_list(splittable)}
    setting = current()
    meeting = setting.meeting(union(every, result), operands=[x.dims for x in xs])
    split = [part.name for part in meeting.parts if part]
    wrong = [name for name in split if name not in may_split]
    if wrong:
        first, other = wrong[0], f"whole_{wrong[0]}"
        raise LayoutError(
            f"the function of mx.local does not work on slices of {', '.join(map(repr, wrong))}.",
            values=f"{describe(xs)} to {show(result)} under {setting.layout}",
            rule="a dim that is split must be among splittable=.",
            fix=f'rename it before, to a name without a rule: x.rename({first}="{other}").'
            if first in known
            else f'give the new dim a name without a rule, and rename the result: y.rename({other}="{first}").',
        )

    lost = [name for name in split if name not in [dim.name for dim in result]]
    if lost:
        raise LayoutError(
            f"the result of mx.local has lost the dim {', '.join(map(repr, lost))}, which is split.",
            values=f"{describe(xs)} to {show(result)} under {setting.layout}",
            rule="each processor's result must be a slice of the whole result.",
            fix="leave reductions over a split dim to mx.sum and its like, or rename the dim before.",
        )

    operands = [setting.placement(x.dims) for x in xs]
    placement = setting.placement(result)

    def call(*arrays: Array) -> Array:
        with typed_outputs(arrays[0]):
            array = call_on_slices(fn, arrays, operands)
        shape = getattr(array, "shape", type(array).__name__)
        if shape != placement.local_shape:
            raise ShapeError(
                "the function of mx.local returned an array of another shape.",
                values=f"{shape} for {show(result)}, on one processor {placement.local_shape}",
                fix="correct out=, or what the function returns.",
            )
        return fill_padding(array, placement, result)

    return Tensor(compute(call, xs), result)


def debug_print(fmt: str, **tensors: Any) -> None:
    """Prints whole values from inside a program, once: `mx.debug_print("loss {loss}", loss=loss)`.

    Inside `mx.remat` what is computed again is not printed again, unless it is in a loop or a branch there.

    Communication: the tensors are gathered.
    """
    axes = tuple(current().mesh.axes)
    whole = jax.tree.map(lambda x: unsplit(settle(x), x.dims) if is_tensor(x) else x, tensors, is_leaf=is_tensor)
    leaves, treedef = jax.tree.flatten(whole)
    known = {i: x for i, x in enumerate(leaves) if not isinstance(x, jax.Array)}  # strings: no program takes them
    arrays = {i: x for i, x in enumerate(leaves) if i not in known}

    def show_once(here: Array, values: dict[int, Array]) -> None:
        if here == 0:
            every = known | values
            print(fmt.format(**jax.tree.unflatten(treedef, [every[i] for i in sorted(every)])))

    def show(arrays: dict[int, Array]) -> None:
        jax.debug.callback(show_once, collectives.processor_index(axes), arrays)

    once_outside(show, arrays)
