"""Layouts: which dim is split over which mesh axes.

A `Layout` is a set of rules `dim:axis`. While `spmd` traces a function, the layout and the mesh are ambient (a
`Setting`); outside, the setting is one processor without rules. The `Placement` of every tensor follows from its dims,
its role and the setting. A dim of size 10 over 4 processors is cut into blocks of 3, 3, 3 and 1: each processor stores
a block of 3, the last one's is padded.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec

from .compat import for_a_while
from .dim import Dim, Dims, known_names, parse_pairs, show
from .errors import LayoutError, did_you_mean
from .mesh import Mesh, OneProcessor

Axes = tuple[str, ...]
Rules = Mapping[str, Axes]
RulesLike = str | Mapping[str, str | Sequence[str]]

_EXAMPLE = 'write for example mx.Layout("batch:rows hidden:cols").'
ROLES = (None, "param", "optimizer")


@dataclass(frozen=True, init=False, eq=False)
class Layout:
    """Rules that split dims over mesh axes.

    >>> Layout("batch:rows+cols")
    Layout("batch:rows+cols")
    >>> Layout({"batch": "data"}, params="d_model:data")
    Layout("batch:data", params="d_model:data")
    """

    rules: tuple[tuple[str, Axes], ...]
    params: tuple[tuple[str, Axes], ...]
    optimizer: tuple[tuple[str, Axes], ...]
    rings: Axes

    def __init__(
        self,
        rules: RulesLike = "",
        params: RulesLike = "",
        optimizer: RulesLike = "",
        rings: str | Sequence[str] = "",
    ):
        """Reads the rules.

        Args:
            rules: the dims of every tensor, as `"batch:rows hidden:cols"` or `{"batch": ("rows", "cols")}`.
            params: rules added where a tensor is stored as a parameter (see `mx.param`).
            optimizer: rules added where a tensor is stored as state of an optimizer.
            rings: axes around which blocks are sent from neighbour to neighbour, `"model"` or `"rows+cols"`: those of
                linear maps, rather than gather them before or reduce-scatter them after, and gradients of stored
                parameters, rather than reduce-scatter them. A ring of n processors is n - 1 permutes.
        """
        object.__setattr__(self, "rules", _parse(rules))
        object.__setattr__(self, "params", _parse(params))
        object.__setattr__(self, "optimizer", _parse(optimizer))
        object.__setattr__(self, "rings", _axes(rings))

    def for_role(self, role: str | None) -> dict[str, Axes]:
        """Returns the rules for tensors of a role: the main ones, then the role's."""
        merged = dict(self.rules)
        added = {"param": self.params, "optimizer": self.optimizer}.get(role or "", ())
        return merged | {dim: merged.get(dim, ()) + axes for dim, axes in added}

    def all_rules(self) -> Iterator[tuple[str, Axes]]:
        """Iterates over the rules of all roles."""
        return iter(self.rules + self.params + self.optimizer)

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return tuple(map(frozenset, (self.rules, self.params, self.optimizer, self.rings)))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        roles = (("params", self.params), ("optimizer", self.optimizer))
        parts = [f'"{_show_rules(self.rules)}"', *(f'{name}="{_show_rules(r)}"' for name, r in roles if r)]
        parts += [f'rings="{"+".join(self.rings)}"'] if self.rings else []
        return f"Layout({', '.join(parts)})"


def _parse(rules: RulesLike) -> tuple[tuple[str, Axes], ...]:
    if isinstance(rules, str):
        pairs: list[tuple[str, Any]] = list(parse_pairs(rules, LayoutError, "a layout", _EXAMPLE))
    elif isinstance(rules, Mapping):
        pairs = list(rules.items())
    else:
        raise LayoutError(
            f"a layout is a string or a dict, not {type(rules).__name__}.", values=repr(rules), fix=_EXAMPLE
        )
    parsed: dict[str, Axes] = {}
    for dim, split in pairs:
        dim = dim.name if isinstance(dim, Dim) else dim
        listed = split.split("+") if isinstance(split, str) else split
        axes = tuple(listed) if isinstance(listed, Sequence) else ()
        if not isinstance(dim, str) or not dim.isidentifier():
            raise LayoutError(f"{dim!r} is not the name of a dim.", values=repr(rules), fix=_EXAMPLE)
        if not axes or not all(isinstance(axis, str) and axis.isidentifier() for axis in axes):
            raise LayoutError(f"{split!r} does not name mesh axes for dim {dim!r}.", values=repr(rules), fix=_EXAMPLE)
        if dim in parsed:
            raise LayoutError(
                f"dim {dim!r} has two rules.",
                values=repr(rules),
                rule="a dim has one rule.",
                fix=f'to split it over several axes, join them: "{dim}:{"+".join(parsed[dim] + axes)}".',
            )
        if len(set(axes)) != len(axes):
            raise LayoutError(
                f"dim {dim!r} is split twice over one axis.", values=repr(rules), fix="name each axis once."
            )
        parsed[dim] = axes
    return tuple(parsed.items())


def _axes(rings: str | Sequence[str]) -> Axes:
    listed = rings.split("+") if isinstance(rings, str) and rings else rings
    if not isinstance(listed, Sequence) or not all(isinstance(axis, str) and axis.isidentifier() for axis in listed):
        raise LayoutError(f"{rings!r} does not name mesh axes for rings.", fix='write rings="model", or "rows+cols".')
    return tuple(dict.fromkeys(listed))


def _show_rules(rules: Sequence[tuple[str, Axes]]) -> str:
    return " ".join(f"{dim}:{'+'.join(axes)}" for dim, axes in rules)


def block_size(size: int, parts: int) -> int:
    """Returns the size of the block that each of `parts` processors stores: 10 over 4 is 3."""
    return -(-size // parts)


class Part(NamedTuple):
    """One dimension of an array of which each processor holds a block: the dim, and the axes that split it."""

    name: str
    size: int
    axes: Axes


class Placement(tuple[Axes, ...]):
    """For each dim of a tensor the mesh axes that split it, major first.

    Two placements are equal if they split alike, whatever the dims are called.
    """

    dims: Dims
    mesh: Mesh

    def __new__(cls, dims: Dims, mesh: Mesh, split: Iterable[Axes]) -> "Placement":
        """Takes the axes of each dim."""
        placement = super().__new__(cls, split)
        placement.dims, placement.mesh = dims, mesh
        return placement

    @cached_property
    def axes(self) -> frozenset[str]:
        """The axes that split any dim."""
        return frozenset(axis for axes in self for axis in axes)

    def over(self, dims: Sequence[Dim]) -> Axes:
        """Returns the axes that split some of the dims, one dim's after the other's."""
        return tuple(axis for dim, axes in zip(self.dims, self, strict=True) if dim in dims for axis in axes)

    def of(self, dim: Dim) -> Axes:
        """Returns the axes that split a dim."""
        return self[self.dims.index(dim)]

    def count(self, dim: Dim) -> int:
        """Returns the number of processors that a dim is split over."""
        return self.mesh.count(self.of(dim))

    def block(self, dim: Dim) -> int:
        """Returns the size of the block of a dim that each processor stores."""
        return block_size(dim.size, self.count(dim))

    @cached_property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of the slice that one processor stores, padding included."""
        return tuple(map(self.block, self.dims))

    @cached_property
    def padded_shape(self) -> tuple[int, ...]:
        """The shape of the whole array as stored: each dim is a whole number of blocks."""
        return tuple(self.block(dim) * self.count(dim) for dim in self.dims)

    @cached_property
    def uneven(self) -> Dims:
        """The dims whose blocks hold padding."""
        return tuple(dim for dim in self.dims if dim.size % self.count(dim))

    @cached_property
    def parts(self) -> tuple[Part | None, ...]:
        """For each dimension of a slice what it is a part of, None if it is whole."""
        pairs = zip(self.dims, self, strict=True)
        return tuple(Part(dim.name, dim.size, axes) if self.mesh.count(axes) > 1 else None for dim, axes in pairs)

    @cached_property
    def spec(self) -> PartitionSpec:
        """JAX's name for it, as JAX itself says it of results: without what is not split at the end."""
        return PartitionSpec(*self[: max((i + 1 for i, axes in enumerate(self) if axes), default=0)])

    def whole(self, dims: Sequence[Dim]) -> "Placement":
        """Returns the placement of the same tensor that is not split along some dims."""
        split = [() if dim in dims else axes for dim, axes in zip(self.dims, self, strict=True)]
        return Placement(self.dims, self.mesh, split)

    def stacked(self, dim: Dim) -> "Placement":
        """Returns the placement of such tensors along a first dim, which is not split."""
        return Placement((dim, *self.dims), self.mesh, ((), *self))


class _Identity:
    """What equal settings share. JAX compares them for every operation that it traces: so it sees one object."""


_one_at_a_time = threading.RLock()  # a collection of garbage inside may make another
_identities: "weakref.WeakValueDictionary[tuple[Mesh, Layout], _Identity]" = weakref.WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class Setting:
    """A mesh and a layout: all that the placement of a tensor follows from, besides its dims and its role."""

    mesh: Mesh
    layout: Layout
    placements: dict[Any, Placement] = field(default_factory=dict, init=False, repr=False)  # asked for
    _identity: _Identity = field(init=False, repr=False)

    def __post_init__(self) -> None:
        with _one_at_a_time:
            object.__setattr__(self, "_identity", _identities.setdefault((self.mesh, self.layout), _Identity()))

    def __reduce__(self) -> Any:
        return Setting, (self.mesh, self.layout)  # a copy is equal

    def __hash__(self) -> int:
        return hash(self._identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and self._identity is other._identity

    @cached_property
    def _rules(self) -> dict[str | None, dict[str, Axes]]:
        return {role: self.layout.for_role(role) for role in ROLES}

    @cached_property
    def has_rules(self) -> bool:
        """Whether anything can be split, and so anything be a slice, copies or a pending sum."""
        return any(self._rules.values())

    def check(self) -> "Setting":
        """Raises unless every rule names axes of this mesh, at most once for a dim, and a dim that exists."""
        unknown = [axis for axis in self.layout.rings if axis not in self.mesh.axes]
        problems = [f"rings: no mesh axis {axis!r}; {did_you_mean(axis, self.mesh.axes)}" for axis in unknown]
        for dim, axes in self.layout.all_rules():
            rule = _show_rules([(dim, axes)])
            unknown = [axis for axis in axes if axis not in self.mesh.axes]
            problems += [f'"{rule}": no mesh axis {axis!r}; {did_you_mean(axis, self.mesh.axes)}' for axis in unknown]
            if dim not in known_names() or dim.startswith("_"):  # one of ours
                problems.append(f'"{rule}": no dim {dim!r} was ever made; {did_you_mean(dim, known_names())}')
        for role in ROLES:
            for dim, axes in self._rules[role].items():
                if len(set(axes)) != len(axes):
                    rule = _show_rules([(dim, axes)])
                    problems.append(f'"{rule}": the main rule and the one for {role} name the same axis.')
        if problems:
            raise LayoutError(
                "the layout does not fit the mesh or the program."
                + "".join(f"\n    {p}" for p in dict.fromkeys(problems)),
                values=f"{self.layout} on {self.mesh}",
                rule="a rule names a dim that exists and axes of the mesh.",
                fix="correct or remove these rules.",
            )
        return self

    def placement(self, dims: Dims, role: str | None = None, operands: Sequence[Dims] = ()) -> Placement:
        """Returns the placement that a settled tensor has; `operands` are named if two of its dims collide."""
        placement = self.placements.get((dims, role))
        if placement is None:
            placement = self.placements[dims, role] = self.meeting(dims, role, operands)
        return placement

    def meeting(self, dims: Dims, role: str | None = None, operands: Sequence[Dims] = ()) -> Placement:
        """Returns the placement of dims that meet in an operation, and need not be those of any tensor."""
        rules = self._rules[role]
        placement = Placement(dims, self.mesh, [rules.get(dim.name, ()) for dim in dims])
        if len(placement.axes) != sum(map(len, placement)):
            self._raise_collision(dims, role, operands)
        return placement

    def whole(self, dims: Dims) -> Placement:
        """Returns the placement of a tensor that is not split."""
        return Placement(dims, self.mesh, [()] * len(dims))

    def _raise_collision(self, shape: Dims, role: str | None, operands: Sequence[Dims]) -> None:
        rules = self._rules[role]
        axes = dict.fromkeys(axis for dim in shape for axis in rules.get(dim.name, ()))
        owners = {axis: [dim.name for dim in shape if axis in rules.get(dim.name, ())] for axis in axes}
        shared = [f"{' and '.join(map(repr, dims))} over {axis!r}" for axis, dims in owners.items() if len(dims) > 1]
        where = "one tensor" if not operands else "the operands of one operation"
        values = " and ".join(show(dims, [rules.get(d.name, ()) for d in dims]) for dims in operands or [shape])
        raise LayoutError(
            f"dims of {where} are split over the same mesh axis: {'; '.join(shared)}.",
            values=f"{values} under {self.layout}",
            rule="an axis splits at most one of the dims that meet in a tensor.",
            fix="split one of them over another axis, or rename it where they meet, to a name without a rule.",
        )


OUTSIDE = Setting(OneProcessor(), Layout())
_ambient = jax.make_user_context(OUTSIDE._identity)  # part of every JAX cache key: two layouts never share a trace
_own = threading.local()  # per thread: several may trace at once


def current() -> Setting:
    """Returns the setting that `spmd` is tracing under; outside of it, one processor without rules."""
    return getattr(_own, "setting", None) or OUTSIDE


def is_inside() -> bool:
    """Whether a program is being traced."""
    return current() is not OUTSIDE


@contextlib.contextmanager
def ambient(setting: Setting) -> Iterator[Setting]:
    """Makes a setting the current one."""
    with _ambient(setting._identity), for_a_while(_own, "setting", setting):
        yield setting
