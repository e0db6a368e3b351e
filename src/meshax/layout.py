"""Layouts: which dim is split over which mesh axes.

A `Layout` is a set of rules `dim:axis`. While `spmd` traces a function, the layout and the mesh are ambient (a
`Setting`); the `Placement` of every tensor follows from its dims, its role and the setting. A dim of size 10 over 4
processors is cut into blocks of 3, 3, 3 and 1: each processor stores a block of 3, the last one's is padded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import jax
from jax.sharding import PartitionSpec

from .dims import Dim, Dims, known_names, parse_pairs, show
from .errors import LayoutError, did_you_mean
from .mesh import Mesh

Axes = tuple[str, ...]
Placement = tuple[Axes, ...]  # for each dim of a tensor the mesh axes that split it, major first
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

    def __init__(self, rules: RulesLike = "", params: RulesLike = "", optimizer: RulesLike = ""):
        """Reads the rules.

        Args:
            rules: the dims of every tensor, as `"batch:rows hidden:cols"` or `{"batch": ("rows", "cols")}`.
            params: rules added where a tensor is stored as a parameter (see `mx.param`).
            optimizer: rules added where a tensor is stored as state of an optimizer.
        """
        object.__setattr__(self, "rules", _parse(rules))
        object.__setattr__(self, "params", _parse(params))
        object.__setattr__(self, "optimizer", _parse(optimizer))

    def for_role(self, role: str | None) -> dict[str, Axes]:
        """Returns the rules for tensors of a role: the main ones, then the role's."""
        merged = dict(self.rules)
        added = {"param": self.params, "optimizer": self.optimizer}.get(role or "", ())
        for dim, axes in added:
            merged[dim] = merged.get(dim, ()) + axes
        return merged

    def all_rules(self) -> Iterator[tuple[str, Axes]]:
        """Iterates over the rules of all roles."""
        yield from self.rules
        yield from self.params
        yield from self.optimizer

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return tuple(map(frozenset, (self.rules, self.params, self.optimizer)))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        parts = [f'"{_show_rules(self.rules)}"']
        parts += [
            f'{name}="{_show_rules(r)}"' for name, r in (("params", self.params), ("optimizer", self.optimizer)) if r
        ]
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
    for dim, given in pairs:
        dim = dim.name if isinstance(dim, Dim) else dim
        listed = given.split("+") if isinstance(given, str) else given
        axes = tuple(listed) if isinstance(listed, Sequence) else ()
        if not isinstance(dim, str) or not dim.isidentifier():
            raise LayoutError(f"{dim!r} is not the name of a dim.", values=repr(rules), fix=_EXAMPLE)
        if not axes or not all(isinstance(axis, str) and axis.isidentifier() for axis in axes):
            raise LayoutError(f"{given!r} does not name mesh axes for dim {dim!r}.", values=repr(rules), fix=_EXAMPLE)
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


def _show_rules(rules: Sequence[tuple[str, Axes]]) -> str:
    return " ".join(f"{dim}:{'+'.join(axes)}" for dim, axes in rules)


def block_size(size: int, parts: int) -> int:
    """Returns the size of the block that each of `parts` processors stores: 10 over 4 is 3."""
    return -(-size // parts)


@dataclass(frozen=True)
class Setting:
    """A mesh and a layout: all that the placement of a tensor follows from, besides its dims and its role."""

    mesh: Mesh
    layout: Layout
    placements: dict[Any, Placement] = field(default_factory=dict, init=False, repr=False, compare=False)  # asked for
    parts: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # of arrays given away
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.mesh, self.layout)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:  # JAX asks for every operation that it traces
        if self is other:
            return True
        return isinstance(other, Setting) and (self.mesh, self.layout) == (other.mesh, other.layout)

    @cached_property
    def _rules(self) -> dict[str | None, dict[str, Axes]]:
        return {role: self.layout.for_role(role) for role in ROLES}

    def check(self) -> "Setting":
        """Raises unless every rule names axes of this mesh, at most once for a dim, and a dim that exists."""
        problems = []
        for dim, axes in self.layout.all_rules():
            for axis in axes:
                if axis not in self.mesh.axes:
                    problems.append(
                        f'"{dim}:{"+".join(axes)}": no mesh axis {axis!r}; {did_you_mean(axis, self.mesh.axes)}'
                    )
            if dim not in known_names():
                problems.append(
                    f'"{dim}:{"+".join(axes)}": no dim {dim!r} was ever made; {did_you_mean(dim, known_names())}'
                )
        for role in ROLES:
            for dim, axes in self._rules[role].items():
                if len(set(axes)) != len(axes):
                    problems.append(
                        f'"{dim}:{"+".join(axes)}": the main rule and the one for {role} name the same axis.'
                    )
        if problems:
            raise LayoutError(
                "the layout does not fit the mesh or the program."
                + "".join(f"\n    {p}" for p in dict.fromkeys(problems)),
                values=f"{self.layout} on {self.mesh}",
                rule="a rule names a dim that exists and axes of the mesh.",
                fix="correct or remove these rules.",
            )
        return self

    def placement(self, shape: Dims, role: str | None = None, operands: Sequence[Dims] = ()) -> Placement:
        """Returns the mesh axes that split each dim; `operands` are named if two dims collide."""
        rules = self._rules[role]
        placement = tuple(rules.get(dim.name, ()) for dim in shape)
        used = [axis for axes in placement for axis in axes]
        if len(set(used)) != len(used):
            self._raise_collision(shape, role, operands)
        return placement

    def _raise_collision(self, shape: Dims, role: str | None, operands: Sequence[Dims]) -> None:
        rules = self._rules[role]
        owners: dict[str, list[str]] = {}
        for dim in shape:
            for axis in rules.get(dim.name, ()):
                owners.setdefault(axis, []).append(dim.name)
        shared = [f"{' and '.join(map(repr, dims))} over {axis!r}" for axis, dims in owners.items() if len(dims) > 1]
        where = "one tensor" if not operands else "the operands of one operation"
        values = " and ".join(show(dims, [rules.get(d.name, ()) for d in dims]) for dims in operands or [shape])
        raise LayoutError(
            f"dims of {where} are split over the same mesh axis: {'; '.join(shared)}.",
            values=f"{values} under {self.layout}",
            rule="an axis splits at most one of the dims that meet in a tensor.",
            fix="split one of them over another axis, or rename it where they meet, to a name without a rule.",
        )

    @cache  # noqa: B019  # settings are few, and this is asked for at every operand
    def local_shape(self, shape: Dims, placement: Placement) -> tuple[int, ...]:
        """Returns the shape of the slice that one processor stores, padding included."""
        return tuple(block_size(d.size, self.mesh.count(axes)) for d, axes in zip(shape, placement, strict=True))

    def padded_shape(self, shape: Dims, placement: Placement) -> tuple[int, ...]:
        """Returns the shape of the whole array as stored: each dim is a whole number of blocks."""
        counts = [self.mesh.count(axes) for axes in placement]
        return tuple(block_size(d.size, n) * n for d, n in zip(shape, counts, strict=True))

    def is_uneven(self, dim: Dim, axes: Axes) -> bool:
        """Whether the blocks of a dim hold padding."""
        return dim.size % self.mesh.count(axes) != 0


def partition_spec(placement: Placement) -> PartitionSpec:
    """Returns JAX's name for a placement."""
    return PartitionSpec(*placement)


_ambient = jax.make_user_context(None)  # part of every JAX cache key: two layouts never share a trace


def current() -> Setting | None:
    """Returns the setting that `spmd` is tracing under, or None outside of it."""
    return _ambient.value


def ambient(setting: Setting) -> Any:
    """Returns a context manager that makes a setting the current one."""
    return _ambient(setting)


def canonical(setting: Setting | None, shape: Dims, role: str | None) -> Placement:
    """Returns the placement that a settled tensor has."""
    if setting is None:
        return ((),) * len(shape)
    found = setting.placements.get((shape, role))
    if found is None:
        found = setting.placements[shape, role] = setting.placement(shape, role)
    return found
