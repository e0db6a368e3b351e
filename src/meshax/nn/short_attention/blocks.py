"""What the kernels of attention over short sequences have in common: sizes, blocks in shared memory, their products."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as gpu

from ...collectives import to_copies
from ...compat import varying_axes
from .beside import beside

BLOCK = 64
COMPUTING, MOVING = 232, 40  # registers of a warpgroup's threads: 65,536 in all
LAYOUT = gpu.Layout.WGMMA
_IDX = signature(gpu.load).parameters.get("idx")
_ALL = [()] if _IDX is not None and _IDX.default is Parameter.empty else []  # JAX 0.10 wants to be told


def halved(number: Any) -> Any:
    """Returns half of a number that is not negative, rounded down: `//` would ask for its sign, in much code."""
    return number // 2 if isinstance(number, int) else lax.div(number, jnp.asarray(2, number.dtype))


@dataclass(frozen=True)
class Sizes:
    """What a kernel is made for."""

    length: int
    d: int
    dtype: Any
    scale: float
    causal: bool
    packed: bool
    interpret: Any

    @property
    def blocks(self) -> int:
        """Of the positions of an example."""
        return self.length // BLOCK

    @property
    def pairs(self) -> int:
        """Of such blocks."""
        return self.blocks // 2

    @property
    def to_base_2(self) -> float:
        """What scores are multiplied by, so that the softmax may take powers of 2."""
        return self.scale * math.log2(math.e)

    def first_row(self, column: Any) -> Any:
        """Returns the first block of queries that sees a block of keys."""
        return column if self.causal else 0

    def product(self, a: Any, b: Any) -> Any:
        """Returns a b^T, of two blocks in shared memory."""
        if self.interpret is not None:  # which knows no products of this kind
            return jnp.dot(a[...].astype(jnp.float32), b[...].astype(jnp.float32).T)

        def multiply(total: Any) -> Any:
            gpu.wgmma(total, a, b.transpose((1, 0)))
            return total[...]

        return pl.run_scoped(multiply, gpu.ACC((a.shape[0], b.shape[0]), jnp.float32))

    def added(self, total: Any, a: Any, b: Any, turned: bool = False) -> Any:
        """Returns total + a b, or total + a^T b; b is in shared memory, and so is a if it is turned."""
        if self.interpret is not None:
            a = a[...].astype(jnp.float32)
            return total + jnp.dot(a.T if turned else a, b[...].astype(jnp.float32))

        def multiply(total: Any) -> None:
            gpu.wgmma(total, a.transpose((1, 0)) if turned else a, b)

        return pl.run_state(multiply)(gpu.ACC.init(total))

    def zeros(self) -> Any:
        """Returns a sum of products, for now 0."""
        return gpu.layout_cast(jnp.full((BLOCK, self.d), 0.0, jnp.float32), LAYOUT)

    def computes(self) -> None:
        """Makes this warpgroup one that computes: it takes registers that the other gives up."""
        if self.interpret is None:
            gpu.set_max_registers(COMPUTING, action="increase")

    def moves(self) -> None:
        """Makes this warpgroup the one that moves blocks."""
        if self.interpret is None:
            gpu.set_max_registers(MOVING, action="decrease")


def run(
    sizes: Sizes, body: Callable[..., None], name: str, operands: Sequence[Any], out: Any, scratch: Any, **grid: int
) -> Any:
    """Runs a kernel of three warpgroups on arrays; its results vary over the mesh as these do, which JAX forgets."""
    body.__name__ = name  # what a profile shows
    kernel = gpu.kernel(
        body,
        out_type=out,
        scratch_types=scratch,
        grid=tuple(grid.values()),
        grid_names=tuple(grid),
        num_threads=3,
        thread_name="warpgroup",
        compiler_params=gpu.CompilerParams(approx_math=True, lowering_semantics=gpu.LoweringSemantics.Lane),
        interpret=sizes.interpret,
    )
    axes = frozenset[str]().union(*map(varying_axes, operands))
    results = beside(kernel, *operands) if sizes.interpret is None else kernel(*operands)
    return [to_copies(x, axes) for x in results]


def room(*shape: int, dtype: Any) -> Any:
    """Returns shared memory that products read: rows of 128 bytes, so turned that no two meet in a bank."""
    wide = 128 // jnp.dtype(dtype).itemsize
    these: Any = gpu  # whose types call transforms abstract
    return gpu.SMEM(shape, dtype, transforms=(these.TilingTransform((8, wide)), these.SwizzleTransform(128)))


def along(x: Any, axis: int) -> Any:
    """Returns a vector, in shared memory, as the rows (0) or columns (1) of a block of scores."""
    return lax.broadcast_in_dim(load(x, LAYOUT.reduce(1 - axis)), (BLOCK, BLOCK), [axis])


def load(x: Any, layout: Any) -> Any:
    """Returns what is in shared memory, spread over the registers as products want it."""
    return gpu.load(x, *_ALL, layout=layout)


def when(number: Any) -> Callable[[Callable[[], None]], None]:
    """Does the work it is given if a whole number is positive, and nothing otherwise.

    `pl.when` asks for a condition, and Mosaic for a number: to make one of it, it starts the assembler each time, and
    asks which version that is.
    """
    return lambda work: lax.switch(number, (lambda: None, work))


def wait_if(number: Any, *barriers: Any) -> None:
    """Waits for all of them if a whole number is positive, and for none otherwise."""

    @when(number)
    def _wait() -> None:
        for barrier in barriers:
            gpu.barrier_wait(barrier)


def same_documents(documents: Any, rows: Any, columns: Any) -> Any:
    """Returns which scores of a block are of one document.

    Args:
        documents: those of the positions, in shared memory.
        rows: the block that the rows are.
        columns: the block that the columns are.
    """
    ids = [along(documents.at[pl.ds(n * BLOCK, BLOCK)], axis) for axis, n in enumerate((rows, columns))]
    return ids[0] == ids[1]


def without_later(x: Any, hidden: float, rows: Any, columns: Any, queries: int) -> Any:
    """Returns a block of scores in which keys that come after a query are hidden.

    Only blocks on the diagonal have some, and only they take the branch: a body of their own would compile for as long
    as the other.

    Args:
        x: the block.
        hidden: what stands for a hidden score.
        rows: the block that the rows are.
        columns: the block that the columns are.
        queries: whether queries are the rows (0) or the columns (1).
    """

    def cut(x: Any) -> Any:
        at = [gpu.broadcasted_iota(jnp.int32, (BLOCK, BLOCK), axis, layout=LAYOUT) for axis in (0, 1)]
        return jnp.where(at[queries] >= at[1 - queries], x, hidden)

    distance = (rows, columns)[queries] - (rows, columns)[1 - queries]  # never negative: those would see nothing
    return lax.switch(1 - distance, (lambda x: x, cut), x)
