"""Which borders the windows of a trace reach: convolutions, pools, and their derivatives.

In an unsplit trace a convolution has all that its borders follow from: taps, strides, dilations, padding. Its
derivative by the operand sends the operand's border back, whatever the border of what it is given; the one by the
kernel has what it needs.
"""

from collections.abc import Iterator

from ...dim import Dim
from ...spatial.sliding import Slide, Spread
from ..reading.walk import Step, Value
from .graph import Graph

_POOLS = ("reduce_window_max", "reduce_window_min", "reduce_window_sum", "reduce_window")
SLIDING = frozenset(["conv_general_dilated", "select_and_scatter_add", *_POOLS])


def whose_border(step: Step) -> Value:
    """Returns the value whose border is sent: the operand, or in a derivative the operand's gradient."""
    is_derivative = step.phase == "backward" or step.name == "select_and_scatter_add"
    return step.outputs[0] if is_derivative else step.inputs[0]


def windows_of(step: Step, graph: Graph) -> Iterator[tuple[int, Slide]]:
    """Iterates over the windows of a step: which dimension of the value they slide along, and how."""
    if step.name != "conv_general_dilated":
        yield from _pooling(step, graph)
    elif not any(shared_names(step, graph)):
        yield from _convolving(step, graph)


def shared_names(step: Step, graph: Graph) -> Iterator[str]:
    """Iterates over the names of places that operand and kernel of a convolution share: it is a derivative by taps."""
    numbers, (left, right) = step.params["dimension_numbers"], map(graph.of, step.inputs)
    for i, j in zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], strict=True):
        if left[i] is not None and left[i] == right[j]:
            yield left[i]  # type: ignore[misc]


def names_of_taps(step: Step, graph: Graph) -> list[str | None]:
    """Returns the names of the dims of taps: a kernel that is split along one is gathered."""
    if step.name != "conv_general_dilated" or any(shared_names(step, graph)):
        return []
    return [graph.of(step.inputs[1])[i] for i in step.params["dimension_numbers"].rhs_spec[2:]]


def _convolving(step: Step, graph: Graph) -> Iterator[tuple[int, Slide]]:
    numbers, value = step.params["dimension_numbers"], whose_border(step)
    operand, kernel, out = *step.inputs, step.outputs[0]
    for i, (left, right, new) in enumerate(
        zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
    ):
        stride, spread, dilation = (step.params[n][i] for n in ("window_strides", "lhs_dilation", "rhs_dilation"))
        taps, low = kernel.shape[right], step.params["padding"][i][0]
        high = (taps - 1) * dilation - low  # how far the last tap of the first window reaches into the operand
        position = left if value is operand else new
        name = graph.of(value)[position]
        if name is None:
            continue
        dim = Dim(name, value.shape[position])
        if value is operand:
            wide = spread > 1
            window = (spread, high, out.shape[new]) if wide else (stride, low, out.shape[new])
        else:  # place i of what is given is a window of the gradient that is made, from i * spread - high on
            wide = stride > 1
            window = (stride, low, operand.shape[left]) if wide else (spread, high, operand.shape[left])
        step_size, before, count = window
        if wide:
            yield position, Spread(dim, taps, step_size, dilation, before, 0, count)
        else:
            reach = (taps - 1) * dilation + 1
            yield (
                position,
                Slide(dim, taps, step_size, dilation, before, (count - 1) * step_size + reach - dim.size - before),
            )


def _pooling(step: Step, graph: Graph) -> Iterator[tuple[int, Slide]]:
    if step.name != "select_and_scatter_add" and step.phase == "backward":
        return  # of a mean: what is spread out again stays where windows do not overlap
    value = whose_border(step)
    how = (step.params[name] for name in ("window_dimensions", "window_strides", "padding"))
    for position, (size, stride, (before, after)) in enumerate(zip(*how, strict=True)):
        if size > 1 and (name := graph.of(value)[position]) is not None:
            yield position, Slide(Dim(name, value.shape[position]), size, stride, 1, before, after)
