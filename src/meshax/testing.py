"""For users' own tests: does a function give the same result under every layout, and does it still send the same?

The promise of meshax is that a layout changes speed and memory, never results. It holds for every operation of ours,
and so for a function made of them; a kernel called through `mx.local`, or an array taken out of a tensor, can break it.
What a program sends follows from its layout, and one changed line can multiply it: a stored list notices.
"""

import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from .errors import ArgumentError, LayoutError
from .layout import Layout, Setting, current
from .mesh import Mesh
from .ops.creation import zeros
from .ops.gradients import value_and_grad
from .ops.reduction import sum as sum_
from .plan.explain import golden as golden_
from .plan.explain.report import explain
from .program import Program, spmd
from .tensors import Tensor, is_tensor, settled_array, tensor
from .transfer import fill_padding

__all__ = ["assert_collectives", "forward_and_gradient", "layout_invariance", "layouts_of", "place_with_garbage"]

TOLERANCE = {"float32": 2e-5, "float64": 1e-9, "bfloat16": 4e-2, "float16": 4e-3}
_GARBAGE = -(10**6)
_NOT_LEGAL = ("split over the same mesh axis", "does not work on slices")  # of a layout, not of the function


def layout_invariance(
    fn: Callable[..., Any],
    *args: Any,
    meshes: Sequence[str] = ("x:8", "x:2 y:4"),
    layouts: int = 20,
    gradients: bool = True,
    tolerance: float | None = None,
    seed: int = 0,
) -> int:
    """Checks that a function gives the same values and gradients under many layouts of virtual meshes.

    Padding of uneven dims is filled with NaN. Layouts under which dims collide are left out, and those that split what
    a function called through `mx.local` does not take in slices.

    Args:
        fn: takes and returns pytrees of tensors.
        *args: its arguments; layouts split the dims of their tensors.
        meshes: the meshes, of at most as many processors as there are devices.
        layouts: how many layouts to try on each mesh.
        gradients: whether to compare also the gradient of a weighted sum of the results by all floating tensors.
        tolerance: how far results may differ, relative to the largest; by default what rounding of the dtype explains.
        seed: chooses the layouts.

    Returns:
        The number of layouts checked.

    Raises:
        AssertionError: names the first mesh and layout under which a result differs, and where.
    """
    run = forward_and_gradient(fn, args) if gradients else lambda *args: (fn(*args), None)
    wanted = run(*args)
    tensors = [x for x in jax.tree.leaves(args, is_leaf=is_tensor) if is_tensor(x)]
    names = sorted({dim.name for x in tensors for dim in x.dims})
    checked = 0
    for spec in meshes:
        mesh = Mesh(spec)
        every = [layout for layout in layouts_of(mesh, names, seed) if can_place(tensors, Setting(mesh, layout))]
        for layout in random.Random(seed).sample(every, min(layouts, len(every))):
            setting = Setting(mesh, layout)
            placed = jax.tree.map(lambda x: _place(x, setting), args, is_leaf=is_tensor)  # noqa: B023
            try:
                got = spmd(run, mesh, layout)(*placed)
            except LayoutError as collision:
                if not any(text in str(collision) for text in _NOT_LEGAL):
                    raise
                continue
            _assert_same(got, wanted, f"{layout} on {mesh}", tolerance)
            checked += 1
    assert checked, "no layout could be checked: under each of them dims collide"
    return checked


_UPDATE = "MESHAX_UPDATE_GOLDEN"


def assert_collectives(program: Program, args: Sequence[Any], golden: str | Path | list[dict[str, Any]]) -> None:
    """Checks that a program's collectives are those that were written down. Nothing runs.

    Args:
        program: what `mx.spmd` made; its mesh may be abstract.
        args: its arguments, in a tuple; tensors of `jax.ShapeDtypeStruct` do.
        golden: the path of a JSON file, or the list itself. With MESHAX_UPDATE_GOLDEN=1 in the environment, the file is
            written instead of compared.

    Raises:
        AssertionError: says by lines of the program which collectives are new, gone, or changed in number or size.
    """
    if not isinstance(args, tuple | list):
        raise ArgumentError(
            "assert_collectives takes the arguments of the program in a tuple.",
            values=type(args).__name__,
            fix="write assert_collectives(program, (w, x), golden).",
        )
    now = golden_.records(explain(program, *args))
    if isinstance(golden, list):
        if changes := golden_.difference(golden_.checked(golden), now):
            raise AssertionError(
                f"the collectives of {program.__name__} have changed:\n{changes}\nIf this is meant, the list is now:\n"
                + golden_.as_json(now).strip()
            )
        return
    path = Path(golden)
    if os.environ.get(_UPDATE) == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(golden_.as_json(now), encoding="utf-8")
        return
    if not path.exists():
        raise AssertionError(f"{golden} does not exist yet. Write it with {_UPDATE}=1 in the environment, and keep it.")
    try:
        before = golden_.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise AssertionError(
            f"{golden} holds no collectives. Write it anew with {_UPDATE}=1 in the environment."
        ) from error
    if changes := golden_.difference(before, now):
        raise AssertionError(
            f"the collectives of {program.__name__} are not those in {golden}:\n{changes}\n"
            f"If this is meant, write the file anew with {_UPDATE}=1 in the environment."
        )


def layouts_of(mesh: Mesh, names: Sequence[str], seed: int = 0) -> Iterator[Layout]:
    """Iterates over layouts of these dims: each over any axes in any order, the illegal ones included.

    Where they would be tens of thousands, those in which no axis is used twice, and a seeded sample.
    """
    axes = list(mesh.axes)
    splits = [p for n in range(len(axes) + 1) for p in itertools.permutations(axes, n)]
    every: Iterable[tuple[tuple[str, ...], ...]] = itertools.product(splits, repeat=len(names))
    if len(splits) ** len(names) > 5000:
        draw = random.Random(seed)
        every = itertools.chain(
            _each_axis_once(axes, len(names)), (tuple(draw.choices(splits, k=len(names))) for _ in range(60))
        )
    for choice in every:
        yield Layout({name: split for name, split in zip(names, choice, strict=True) if split})


def _each_axis_once(axes: list[str], count: int) -> Iterator[tuple[tuple[str, ...], ...]]:
    seen = set()
    for order in itertools.permutations(axes):
        for owners in itertools.product(range(count + 1), repeat=len(axes)):
            choice = tuple(tuple(a for a, owner in zip(order, owners, strict=True) if owner == i) for i in range(count))
            if choice not in seen:
                seen.add(choice)
                yield choice


def can_place(tensors: Sequence[Tensor], setting: Setting) -> bool:
    """Whether the dims of each tensor can be placed without colliding."""
    try:
        for x in tensors:
            setting.meeting(x.dims, x.role)
    except LayoutError:
        return False
    return True


def place_with_garbage(x: Tensor, setting: Setting) -> Tensor:
    """Places a tensor on the mesh, with NaN (or an absurd integer) in its padding."""
    placement = setting.placement(x.dims, x.role)
    shape = placement.padded_shape
    if jnp.issubdtype(x.dtype, jnp.inexact):
        host = np.full(shape, np.nan, x.dtype)
    else:  # an absurd number, and one that could be an index
        host = np.resize(np.array([_GARBAGE, 2]), shape).astype(x.dtype)
    host[tuple(slice(dim.size) for dim in x.dims)] = x.numpy()
    return Tensor(jax.device_put(host, NamedSharding(setting.mesh.jax_mesh, placement.spec)), x.dims, x.role)


def _place(leaf: Any, setting: Setting) -> Any:
    return place_with_garbage(leaf, setting) if is_tensor(leaf) else leaf


def _is_floating(x: Any) -> bool:
    return is_tensor(x) and bool(jnp.issubdtype(x.dtype, jnp.inexact))


def weights_of(shape: Sequence[int]) -> np.ndarray:
    """Returns numbers that differ from place to place: to weigh a result with, as a gradient of ones hides errors."""
    return (1 + 0.37 * np.arange(np.prod(shape, dtype=int)) % 1.7).reshape(shape).astype(np.float32)


def forward_and_gradient(fn: Callable[..., Any], args: Sequence[Any]) -> Callable[..., tuple[Any, list[Tensor]]]:
    """Returns a function of such arguments that gives what `fn` gives, and the gradients of a weighted sum of it."""
    leaves, treedef = jax.tree.flatten(tuple(args), is_leaf=is_tensor)
    floating = [_is_floating(leaf) for leaf in leaves]

    def loss(floats: list[Tensor], others: list[Any]) -> tuple[Any, Any]:
        rest, numbers = iter(others), iter(floats)
        out = fn(*jax.tree.unflatten(treedef, [next(numbers) if f else next(rest) for f in floating]))
        total = zeros(())
        for x in filter(_is_floating, jax.tree.leaves(out, is_leaf=is_tensor)):
            x = with_poisoned_gradient(x)
            total = total + sum_(x.astype(jnp.float32) * tensor(weights_of([d.size for d in x.dims]), x.dims))
        return total, out

    def both(*args: Any) -> tuple[Any, list[Tensor]]:
        leaves = jax.tree.leaves(args, is_leaf=is_tensor)
        floats = [x for x, f in zip(leaves, floating, strict=True) if f]
        others = [x for x, f in zip(leaves, floating, strict=True) if not f]
        (_, out), grads = value_and_grad(loss, has_aux=True)(floats, others)
        return out, grads

    return both


def with_poisoned_gradient(x: Tensor) -> Tensor:
    """Returns the tensor, through whose padding NaN flows back: what follows an op may divide by its padding."""
    placement = current().placement(x.dims, x.role)
    same = jax.custom_vjp(lambda array: array)
    same.defvjp(
        lambda array: (array, None),
        lambda _, grad: (fill_padding(grad, placement, x.dims, jnp.nan),),
    )
    return Tensor(same(settled_array(x)), x.dims, x.role)


def _assert_same(got: Any, wanted: Any, where: str, tolerance: float | None) -> None:
    for kind, one, other in zip(("result", "gradient"), got, wanted, strict=True):
        ours, theirs = (jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_tensor) for tree in (one, other))
        for (path, x), (_, y) in zip(ours, theirs, strict=True):
            a, b = (np.asarray(leaf.numpy() if is_tensor(leaf) else leaf) for leaf in (x, y))
            allowed = TOLERANCE.get(str(b.dtype), 0) if tolerance is None else tolerance
            size = max(1.0, float(np.max(np.abs(b), initial=0))) if allowed else 1.0
            name = f"{kind} {jax.tree_util.keystr(path)}".strip()
            np.testing.assert_allclose(
                a.astype(np.float64),
                b.astype(np.float64),
                allowed,
                allowed * size,
                err_msg=f"{name} differs under {where}",
            )
