"""meshax from scratch: the whole idea in a few hundred lines of NumPy. Read it from top to bottom, and run it.

A program is written once, in named dimensions. One line, the layout, says which of them are split over which
processors, and all communication follows from it. We build everything this takes: named tensors, simulated
processors, the collectives with the bytes they send, sums that wait for their first use, and gradients. At the end
one network trains under five layouts, with the same losses and different communication.
"""

import math
from collections import Counter, namedtuple
from dataclasses import dataclass
from itertools import permutations
from string import ascii_letters

import numpy as np

# 1. Names
#
# A dim is a name and a size. Tensors meet by the names of their dims, never by position: so "batch" means one thing all
# through a program, and one rule about it can hold for every tensor that has it.

Dim = namedtuple("Dim", ["name", "size"])


def union(xs):
    return tuple(dict.fromkeys(dim for x in xs for dim in x.dims))


# 2. Processors
#
# Processors stand in a mesh with named axes: `dim` is a tensor's, `axis` is the mesh's. Ours has 2 rows and 4 columns.
# What the 8 processors hold of one tensor is a single NumPy array, whose first two array dimensions are the mesh:
# slices[1, 2] is the slice on the processor in row 1 and column 2. All slices of a tensor have the same shape.
#
# That gives a simple test of honesty. A processor's own work may touch the last array dimensions only; whatever mixes
# the first two is communication. We do that in one function, which counts the bytes.

MESH = {"rows": 2, "cols": 4}


def count(axes):
    return math.prod(MESH[axis] for axis in axes)


# 3. One line
#
# A layout is a set of rules dim:axis, such as "batch:rows hidden:cols". In "batch:rows+cols" one dim is split over two
# axes, the first being major. The layout is ambient: no operation takes it as an argument, so no program mentions it.
#
# Where a tensor is follows from its dims and the layout; it is not stored, so it cannot be out of date. One thing has
# to be refused: an axis that splits two dims of one tensor, for nobody would hold block 0 of one and 1 of the other.

rules = {}
sent = Counter()  # the bytes that one processor sends, by kind of collective


def use_layout(line):
    rules.clear()
    rules.update({dim: tuple(axes.split("+")) for dim, axes in (rule.split(":") for rule in line.split())})
    sent.clear()


def placement(shape):
    """Returns the mesh axes that split each dim."""
    splits = [rules.get(dim.name, ()) for dim in shape]
    axes = [axis for split in splits for axis in split]
    if len(set(axes)) < len(axes):
        raise ValueError(f"an axis would split two of the dims {', '.join(dim.name for dim in shape)}")
    return splits


# 4. Blocks
#
# A dim that does not divide is no error. 10 elements over 4 processors are blocks of 3, 3, 3 and 1; since all slices
# have one shape, the last block is padded to 3. What the padding holds must never matter. To prove it, we fill it with
# NaN, which spoils all it touches. (`at` counts array dimensions from the end, because the mesh is at the front.)


def pad(array, at, axes):
    """Appends NaN until an array dimension is a whole number of blocks."""
    widths = [(0, 0)] * array.ndim
    widths[at] = (0, -array.shape[at] % count(axes))
    return np.pad(array, widths, constant_values=np.nan)


# 5. Collectives
#
# Each is a function of a list, what the processors along some axes hold, and returns what they hold afterwards.


def all_reduce(held):
    return [sum(held)] * len(held)


def all_gather(held, at):
    return [np.concatenate(held, at)] * len(held)


def reduce_scatter(held, at):
    return np.split(sum(held), len(held), at)


def all_to_all(held, cut, join):
    pieces = [np.split(mine, len(held), cut) for mine in held]
    return [np.concatenate(received, join) for received in zip(*pieces, strict=True)]


def keep_block(held, at):
    return [np.split(mine, len(held), at)[i] for i, mine in enumerate(held)]


# The price is what one processor sends, in units of what it held before, if n of them pass blocks around a ring. An
# all-reduce costs as much as a reduce-scatter and an all-gather of the blocks. To keep one's own block is free: it is
# in this list only because it, too, depends on where a processor stands.

PRICE = {
    all_reduce: lambda n: 2 * (n - 1) / n,
    all_gather: lambda n: n - 1,
    reduce_scatter: lambda n: (n - 1) / n,
    all_to_all: lambda n: (n - 1) / n,
    keep_block: lambda n: 0,
}


def communicate(collective, slices, axes, *at):
    """Runs a collective over mesh axes, in all groups of processors at once: the only place that mixes slices."""
    places, sizes = [list(MESH).index(axis) for axis in axes], [MESH[axis] for axis in axes]
    held = np.moveaxis(slices, places, range(len(axes)))
    held = held.reshape(count(axes), *held.shape[len(axes) :])
    sent[collective.__name__.replace("_", "-")] += round(PRICE[collective](len(held)) * slices[0, 0].nbytes)
    after = np.stack(collective(list(held), *at))
    return np.moveaxis(after.reshape(*sizes, *after.shape[1:]), range(len(axes)), places)


# 6. Tensors, and the three states
#
# A tensor is its slices and its dims. Over each mesh axis it is in one of three states:
#   split       the axis splits one of its dims: each processor holds a block
#   replicated  all processors along the axis hold the same
#   pending     each holds a part of a sum, and nobody the sum
#
# The layout tells the first two apart. The third is the one thing that a tensor has to say for itself.


@dataclass(eq=False)
class Tensor:
    slices: np.ndarray
    dims: tuple
    pending: frozenset = frozenset()
    parents: tuple = ()  # what it was computed from: gradients need it

    def __repr__(self):
        places = zip(self.dims, placement(self.dims), strict=True)
        shown = [f"{dim.name}:{dim.size}" + ("/" + "+".join(axes) if axes else "") for dim, axes in places]
        return f"[{', '.join(shown)}]" + (f" pending over {'+'.join(sorted(self.pending))}" if self.pending else "")


def tensor(array, shape):
    """Gives each processor its slice of a whole array: everything at first, of which it keeps its blocks."""
    slices = np.broadcast_to(array, (*MESH.values(), *(dim.size for dim in shape)))
    for at, axes in zip(range(-len(shape), 0), placement(shape), strict=True):
        slices = communicate(keep_block, pad(slices, at, axes), axes, at)
    return Tensor(slices, shape)


def ones(shape):
    return tensor(np.float32(1), shape)


def settle(x):
    """Reduces a pending sum. Whoever needs the value calls this: the first use pays, and the next finds it done."""
    if x.pending:
        x.slices = communicate(all_reduce, x.slices, [axis for axis in MESH if axis in x.pending])
        x.pending = frozenset()
    return x


# 7. Operations
#
# An einsum multiplies by name and sums over the dims that `out` leaves out. Every processor does so with its slices.
# If a summed dim is split, each has then summed over its own block: the result is pending over the axes of that dim.
# Nothing is sent yet, because we do not know yet what for.
#
# Here elements of a dim meet, so here the padding is masked. An elementwise operation need not care: what it makes of
# padding is padding again.


def einsum(*xs, out):
    every = union(xs)
    pending = [axis for dim, axes in zip(every, placement(every), strict=True) if dim not in out for axis in axes]
    letters = dict(zip(every, ascii_letters, strict=False))
    terms = ["..." + "".join(letters[dim] for dim in shape) for shape in [*(x.dims for x in xs), out]]
    masked = [np.where(np.isnan(ones(x.dims).slices), 0, settle(x).slices) for x in xs]
    slices = np.einsum(",".join(terms[:-1]) + "->" + terms[-1], *masked)
    parents = tuple((x, lambda g, i=i: pull_einsum(g, xs, i)) for i, x in enumerate(xs))
    return Tensor(slices, out, frozenset(pending), parents)


def elementwise(fn, *xs):
    """Applies a function of arrays to operands that are transposed, and broadcast, to the dims of the result."""
    out, front, arrays = union(xs), len(MESH), []
    placement(out)  # refuses operands that need one axis for different dims
    for x in map(settle, xs):
        order = [front + x.dims.index(dim) for dim in out if dim in x.dims]
        array = np.transpose(x.slices, [*range(front), *order])
        arrays.append(np.expand_dims(array, [front + i for i, dim in enumerate(out) if dim not in x.dims]))
    return Tensor(fn(*arrays), out)


def relu(x):
    y = elementwise(lambda a: np.maximum(a, 0), x)
    y.parents = ((x, lambda g: elementwise(lambda g, a: g * (a > 0), g, x)),)
    return y


def add(a, b):
    """Adds by name. Two pending sums can be added, and one be scaled, as they are: the result is reduced once."""
    is_alike = a.dims == b.dims and a.pending == b.pending
    y = Tensor(a.slices + b.slices, a.dims, a.pending) if is_alike else elementwise(np.add, a, b)
    y.parents = tuple((x, lambda g, x=x: g if g.dims == x.dims else einsum(g, out=x.dims)) for x in (a, b))
    return y


def scale(x, number):
    return Tensor(x.slices * x.slices.dtype.type(number), x.dims, x.pending, ((x, lambda g: scale(g, number)),))


use_layout("batch:rows classes:cols")
batch, classes = Dim("batch", 4), Dim("classes", 10)
x = tensor(np.arange(40.0).reshape(4, 10), (batch, classes))
print(f"{x}: 10 over 4 are blocks of {[int(np.isfinite(x.slices[0, i, 0]).sum()) for i in range(4)]}")
total = add(einsum(x, out=(batch,)), einsum(x, x, out=(batch,)))
print(f"{total}: {sent.total()} bytes sent")
for use in ("first", "second"):
    print(f"{relu(total)} after its {use} use: {sent.total()} bytes sent")

# 8. Rename
#
# If names decide where things are, then to move something is to rename it. The old and the new placement say which
# collective that takes; between names that are split alike it takes none. And a pending sum whose new name is split
# over its axis need not be summed everywhere, only where each block goes: half the price of an all-reduce.


def rename(x, **names):
    out = tuple(Dim(names.get(dim.name, dim.name), dim.size) for dim in x.dims)
    now, then, every = placement(x.dims), placement(out), range(-len(out), 0)
    if any(0 < len(x.pending & set(axes)) < len(axes) for axes in then):  # pending over some of a dim's new axes
        settle(x)
    slices, pending = x.slices, x.pending
    for old, new in permutations(every, 2):  # an axis goes from one dim to another
        if now[old] and now[old] == then[new] and not now[new] and not then[old]:
            slices = communicate(all_to_all, pad(slices, new, then[new]), then[new], new, old)
            slices = slices.take(range(out[old].size), old)
            now[old], now[new] = then[old], then[new]
    for at in every:  # a dim is no longer split
        if now[at] and now[at] != then[at]:
            slices = communicate(all_gather, slices, now[at], at).take(range(out[at].size), at)
            now[at] = ()
    for at in every:  # a dim is newly split
        if now[at] != then[at]:
            collective = reduce_scatter if pending & set(then[at]) else keep_block
            slices = communicate(collective, pad(slices, at, then[at]), then[at], at)
            pending -= set(then[at])
    back = {new.name: old.name for old, new in zip(x.dims, out, strict=True)}
    return Tensor(slices, out, pending, ((x, lambda g: rename(g, **back)),))


def whole(x):
    """Returns the whole array, by renaming every dim to a name without a rule: then all processors hold the same."""
    slices = rename(settle(x), **{dim.name: f"whole_{dim.name}" for dim in x.dims}).slices
    assert np.allclose(slices, slices[0, 0])
    return slices[0, 0]


# With the fourth rename below, and its reverse, attention split over heads stands between layers split over positions.
# 6 heads over 4 columns are 2 + 2 + 2 + 0, and that works too.

use_layout("heads:cols positions:cols")
heads, length, width = Dim("heads", 6), Dim("length", 8), Dim("width", 3)
array = np.arange(144.0).reshape(6, 8, 3)
x = tensor(array, (heads, length, width))
print("\nrenaming, if heads:cols positions:cols, and the bytes that one processor sends")
for source, names in [
    (x, {"width": "features"}),
    (x, {"heads": "all_heads"}),
    (rename(x, heads="all_heads"), {"length": "positions"}),
    (x, {"heads": "all_heads", "length": "positions"}),
    (einsum(x, out=(length, width)), {"length": "positions"}),
]:
    sent.clear()
    renamed = rename(source, **names)
    print(f"  {source} to {renamed}: {' '.join(f'{kind} {size}' for kind, size in sent.items() if size) or 'free'}")
    assert np.array_equal(whole(renamed), array if len(renamed.dims) == 3 else array.sum(0))
try:
    rename(x, length="positions")
except ValueError as error:
    print(f"  refused: {error}")

# 9. Gradients
#
# The backward pass is a program like any other, of the same operations on named tensors, so nothing about processors
# has to be said again. The gradient of an einsum is an einsum, that of a broadcast a sum, that of a rename a rename.
#
# Data parallelism has a well-known recipe: after the backward pass, all-reduce the gradients. There is no such step
# below. A weight has no batch dim, so its gradient is summed over the batch; if the batch is split, that sum is
# pending; its first use is the update of the weight. A gradient that nobody uses, that of the data, is never reduced.


def pull_einsum(g, xs, i):
    """Turns the gradient of an einsum into that of operand i: the product with all others, summed to its dims."""
    others = [g, *xs[:i], *xs[i + 1 :]]
    lost = tuple(dim for dim in xs[i].dims if dim not in union(others))  # summed alone: each element counts alike
    return einsum(*others, *([ones(lost)] if lost else []), out=xs[i].dims)


def gradients(value, wanted):
    """Walks back from a number, through what it was computed from, to its gradients by some tensors."""
    order = []

    def visit(node):
        if node not in order:
            for parent, _ in node.parents:
                visit(parent)
            order.append(node)

    visit(value)
    found = {value: ones(())}
    for node in reversed(order):
        for parent, pull in node.parents:
            part = pull(found[node])
            found[parent] = add(found[parent], part) if parent in found else part
    return [found[x] for x in wanted]


# 10. One program, five layouts
#
# Two layers, written once. One dim of each matrix is kept under another name, and renamed where the matrix is used:
# free, as long as no rule mentions that name. No size divides by 8, to make it harder.

batch, inputs, hidden, outputs = Dim("batch", 30), Dim("inputs", 15), Dim("hidden", 50), Dim("outputs", 10)
SHAPES = [(Dim("kept", 15), hidden), (hidden,), (hidden, Dim("kept", 10)), (outputs,)]


def loss(w1, b1, w2, b2, x, y):
    h = relu(add(einsum(x, rename(w1, kept="inputs"), out=(batch, hidden)), b1))
    error = add(add(einsum(h, rename(w2, kept="outputs"), out=(batch, outputs)), b2), scale(y, -1))
    return scale(einsum(error, error, out=()), 1 / (batch.size * outputs.size))


def train(num_steps, rate=0.3):
    draw = np.random.default_rng(0).normal
    arrays = [draw(size=[dim.size for dim in shape]) / shape[0].size ** 0.5 for shape in SHAPES]
    weights = [tensor(array.astype(np.float32), shape) for array, shape in zip(arrays, SHAPES, strict=True)]
    x = draw(size=(batch.size, inputs.size)).astype(np.float32)
    x, y = tensor(x, (batch, inputs)), tensor(np.sin(x[:, : outputs.size] * x[:, 5:]), (batch, outputs))
    losses = []
    for _ in range(num_steps):
        value = loss(*weights, x, y)
        updated = [add(w, scale(g, -rate)) for w, g in zip(weights, gradients(value, weights), strict=True)]
        weights = [Tensor(w.slices, w.dims) for w in updated]  # the next step does not look back
        losses.append(float(whole(value)))
    return np.array(losses), sum(w.slices[0, 0].nbytes for w in weights)


# `data` all-reduces gradients. `model` all-reduces what leaves the hidden layer. `sharded` also splits the weights
# where they are kept, and gathers them where they are used. The gradient of that rename is a rename back, of a pending
# sum, to a name that is split: a reduce-scatter. This is fully sharded data parallelism (ZeRO-3), in one line.
# meshax's `explain` gives the same bytes for this network, but for a second gather (section 11): a test compares them.

LAYOUTS = {
    "none": "",
    "data": "batch:rows+cols",
    "model": "hidden:rows+cols",
    "both": "batch:rows hidden:cols",
    "sharded": "batch:rows+cols kept:rows+cols",
}
NUM_STEPS, KINDS, losses = 40, ["all-reduce", "all-gather", "reduce-scatter"], {}
print(f"\n{NUM_STEPS} steps of training: bytes of weights that one processor holds, and bytes that it sends in a step")
print(f"  {'layout':39}  {'loss':8}  {'weights':>7}", *(f"{kind:>15}" for kind in KINDS))
for name, line in LAYOUTS.items():
    use_layout(line)
    losses[name], held = train(NUM_STEPS)
    print(f"  {name:8} {line:30}  {losses[name][-1]:.6f}  {held:7,}", *(f"{sent[k] // NUM_STEPS:15,}" for k in KINDS))
difference = np.max([np.abs(split / losses["none"] - 1) for split in losses.values()])
assert difference < 1e-5  # NaN is not
print(f"The same losses under every layout: the largest relative difference is {difference:.1e}.")

# 11. What meshax does beyond this
#
# - It runs. The slices are on real devices, in one SPMD program that XLA compiles (`jax.shard_map`); and JAX proves of
#   every value that what we call replicated is, where our `whole` checks a few.
# - JAX differentiates the local program, not the named one. That takes a fourth state, copies: equal values whose
#   gradients differ from processor to processor, and are summed once. See docs/design/states.md.
# - A rename that un-splits waits until its consumer shows which gather it needs. Weights are kept split by a second set
#   of rules (`params=`), not by another name, and gathered again in the backward pass instead of being held until then.
# - It has the other operations: softmax, sorting, indexing, windows, loops, and random numbers that do not depend on
#   the layout. The docstring of each says what it sends.
# - It explains. `program.explain(...)` lists every collective with its bytes and its source line before anything runs,
#   and a rule that names no dim or no axis is an error that says what to do.
