"""How much memory a program needs on one processor, by liveness.

The arguments are there from beginning to end (a result may take over a donated one's). Every other stored value lives
from the kernel that writes it to the last that reads it; at each kernel we add up what is alive, and inside a loop what
its body needs on top. The largest sum is the peak, and its parts are named by what they are for. docs/design/reports.md
says what of XLA's habits is in the sweep.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ...ops.gradients import GRADIENT
from ..reading.broadcasting import Number, key_of, rounded, where
from ..reading.communication import JOINED, axes_of, is_collective
from ..reading.kernels import Kernel, Kernels
from ..reading.walk import Step, Value
from .tiles import tiled_bytes

CLASSES = ("parameters", "optimizer", "gradients", "activations", "temporaries")
_Use = dict[str, Number]  # bytes by class
_GAPS = 1.07  # values of many sizes do not pack without gaps


@dataclass
class Memory:
    """The memory of a program on one processor at its peak, by class."""

    classes: dict[str, Number]
    peak: Number

    def as_dict(self) -> dict[str, Number]:
        """Returns bytes by class, and their sum, `peak`."""
        return {**self.classes, "peak": self.peak}


def memory_of(kernels: Kernels, roles: Sequence[str | None], donated: Sequence[bool], platform: str = "") -> Memory:
    """Adds up the memory of a program.

    Args:
        kernels: the program.
        roles: what each of its inputs is stored as ("param", "optimizer", or None).
        donated: whether a result may take over an input's memory.
        platform: whose compiler makes it, as `Mesh.platform` has it: that for GPUs writes less, that for TPUs tiles.
    """
    names = {"param": "parameters", "optimizer": "optimizer"}
    arguments: _Use = defaultdict(int)
    for value, role in zip(kernels.block.inputs, roles, strict=True):
        arguments[names.get(role or "", "inputs")] += value.bytes
    free = Counter(key_of(v.bytes) for v, is_donated in zip(kernels.block.inputs, donated, strict=True) if is_donated)
    results: _Use = defaultdict(int)
    owned = set()
    for value in dict.fromkeys(map(kernels.root, kernels.block.outputs)):
        if value in kernels.block.inputs:
            continue
        owned.add(value)
        if free[key := key_of(value.bytes)] > 0:
            free[key] -= 1
        else:
            results["results"] += value.bytes
            while (earlier := _taken_over(value, kernels, owned)) is not None:
                owned.add(earlier)
                value = earlier
    inside = _Liveness(kernels, owned, platform).peak()
    total = _sum(arguments, results, {name: rounded(size * _GAPS) for name, size in inside.items()})
    return Memory({name: total.get(name, 0) for name in (*CLASSES, "inputs", "results")}, _total(total))


def _taken_over(result: Value, kernels: Kernels, owned: set[Value]) -> Value | None:
    """Returns a value, if there is one, that can stand in a result's memory until the result replaces it."""
    kernel = next((k for k in kernels.own if result in k.writes), None)
    if kernel is None or not kernel.is_in_place:
        return None
    inputs = set(kernels.block.inputs)
    size = key_of(result.bytes)
    same = [v for v in kernel.reads if key_of(v.bytes) == size and v not in owned and v not in inputs]
    return next((v for v in same if all(k.position <= kernel.position for k in kernels.own if v in k.reads)), None)


class _Liveness:
    """The sweep over the kernels of one block."""

    def __init__(self, kernels: Kernels, owned: set[Value], platform: str):
        """Reads when each value is last needed; `owned` are counted elsewhere."""
        self.kernels, self.platform = kernels, platform
        self.on_gpus = platform == "gpu"
        self.owned = owned | set(kernels.block.inputs) | _starts_of_loops(kernels)
        self.makers = {v: kernel for kernel in kernels.own for v in kernel.writes}
        gathers = [k for k in kernels.own if k.step.traits.collective == "all-gather"]
        self.starts = self._combined() | {k: self._ready(k) + 0.5 for k in gathers}
        self.last: dict[Value, float] = {}
        self.read_in: dict[Value, set[str]] = defaultdict(set)  # phases
        for kernel in kernels.own:
            for value in kernel.reads:
                self.read_in[value].add(kernel.step.phase)
            for value in (*kernel.reads, *self._transposed_from(kernel)):
                self.last[value] = max(self.last.get(value, -1), self._start(kernel))
        for value in map(kernels.root, kernels.block.outputs):
            self.last[value] = len(kernels.block.steps)
        if self.on_gpus:
            self._compute_again()

    def _compute_again(self) -> None:
        """Takes out what GPUs compute wherever it is used: what is dear elsewhere, and casts of what a block is given.

        What it is computed from is needed as long. What is returned is stored, and so is what a product reads.
        """
        block, root = self.kernels.block, self.kernels.root
        inputs = set(block.inputs)
        needed = {root(value) for value in block.outputs}
        needed |= {root(v) for kernel in self.kernels.own if not kernel.is_fusible for v in kernel.step.inputs}
        for kernel in reversed(self.kernels.own):
            cast = kernel.step.name == "convert_element_type" and inputs.issuperset(kernel.reads)
            if cast or (kernel.step.traits.fusion == "dear" and needed.isdisjoint(kernel.writes)):
                self.owned.update(kernel.writes)
                last = max(self.last.get(value, -1) for value in kernel.writes)
                self.last.update((value, max(self.last.get(value, -1), last)) for value in kernel.reads)

    def _is_transposing(self, kernel: Kernel) -> bool:
        return kernel.is_transposing and not self.on_gpus  # GPUs read operands in any order

    def _transposed_from(self, kernel: Kernel) -> Sequence[Value]:
        """Returns what a product's transposed operand is computed from: its elementwise part is done again for it."""
        maker = self.makers.get(self.kernels.root(kernel.step.inputs[0])) if self._is_transposing(kernel) else None
        return maker.reads if maker is not None and maker.is_elementwise else ()

    def peak(self) -> _Use:
        """Returns the bytes by class at the moment when they are most."""
        alive: dict[Value, str] = {}
        use: _Use = defaultdict(int)
        best: _Use = {}
        for start, together in groupby(sorted(self.kernels.own, key=self._start), self._start):
            for kernel in (several := list(together)):
                for value in kernel.writes:
                    if value not in self.owned and value not in alive:
                        alive[value] = self._class(value)
                        use[alive[value]] = use[alive[value]] + value.bytes
            inside = [_sum(self._inside(k), self._workspace(k)) for k in several]
            best = _largest([best, *(_sum(use, more) for more in inside)])
            for value in [v for v in alive if self.last.get(v, -1) <= start]:
                name = alive.pop(value)
                use[name] = use[name] - value.bytes
        return best

    def _start(self, kernel: Kernel) -> float:
        """When a kernel runs; a gather as soon as it can, as compilers hide its time behind other work."""
        return self.starts.get(kernel, kernel.position)

    def _ready(self, kernel: Kernel) -> int:
        return max((self.makers[v].position for v in kernel.reads if v in self.makers), default=-1)

    def _combined(self) -> dict[Kernel, float]:
        """All-reduces that do not wait for each other become one, which reads and writes all of them at once."""
        starts: dict[Kernel, float] = {}
        first: dict[tuple[str, ...], tuple[int, int]] = {}
        for kernel in self.kernels.own:
            if not kernel.step.traits.is_all_reduced_sum:
                continue
            axes, size = axes_of(kernel.step), sum(v.bytes for v in kernel.writes)
            position, so_far = first.get(axes, (-1, 0))
            if self._ready(kernel) >= position or so_far + size > JOINED:
                position, so_far = kernel.position, 0
            first[axes] = position, so_far + size
            starts[kernel] = position
        return starts

    def _inside(self, kernel: Kernel) -> _Use:
        """Returns what a loop's or branch's body needs on top of what goes in and comes out."""
        bodies = [
            _sum(
                _Liveness(inner, _in_place(kernel.step, inner), self.platform).peak(),
                _slices(kernel.step, inner, self.on_gpus),
            )
            for inner in self.kernels.inner.get(kernel.step, ())
        ]
        return _largest(bodies)

    def _workspace(self, kernel: Kernel) -> _Use:
        if self.platform == "tpu" and (tiled := tiled_bytes(kernel.step)):
            return {"temporaries": tiled}
        return {"temporaries": kernel.workspace} if self._is_transposing(kernel) else {}

    def _class(self, value: Value) -> str:
        users = _users(value)
        if any(user.scope.endswith(GRADIENT) or user.params.get("name") == GRADIENT for user in users):
            return "gradients"
        if value.maker is not None and is_collective(value.maker) and _is_named_gradient(value.maker.inputs[0]):
            return "gradients"
        made_forward = value.maker is not None and value.maker.phase == "forward"
        if made_forward and self.read_in[value] & {"backward", "recompute"}:
            return "activations"
        return "temporaries"


def _is_named_gradient(value: Value) -> bool:
    return value.maker is not None and value.maker.params.get("name") == GRADIENT


def _total(use: _Use) -> Number:
    return sum(use.values())


def _sum(*uses: _Use) -> _Use:
    together: _Use = {}
    for use in uses:
        for name, size in use.items():
            together[name] = together[name] + size if name in together else size
    return together


def _largest(uses: Sequence[_Use]) -> _Use:
    """Returns the use whose sum is the largest, and of equal ones the first; for each layout its own."""
    best: _Use = uses[0] if uses else {}
    for use in uses[1:]:
        larger = _total(use) > _total(best)
        best = {name: where(larger, use.get(name, 0), best.get(name, 0)) for name in {**best, **use}}
    return best


def _users(value: Value) -> list[Step]:
    """Returns the steps that use a value, through views of it."""
    users: list[Step] = []
    todo = [value]
    while todo:
        for step in todo.pop().consumers:
            users.append(step)
            if step.traits.fusion == "view" or step.name == "transpose":
                todo.extend(step.outputs)
    return users


def _starts_of_loops(kernels: Kernels) -> set[Value]:
    """Returns the zeros that loops start from, and what was put into them: they are where the loop's result will be."""
    zeros = set()
    for step in (k.step for k in kernels.own if k.step.name == "scan"):
        consts, carry = step.params["num_consts"], step.params["num_carry"]
        for value in map(kernels.root, step.inputs[consts : consts + carry]):
            start = [value]
            while (maker := start[-1].maker) is not None and maker.traits.is_scatter:
                start.append(kernels.root(maker.inputs[0]))
            if maker is not None and maker.name == "broadcast_in_dim":
                zeros.update(start)
    return zeros


def _in_place(step: Step, body: Kernels) -> set[Value]:
    """Returns the results of a loop's body that are written right into the loop's.

    Those are the slices of a stacked result, what is added to a carry, elementwise, and what is put into one.
    """
    if step.name != "scan":
        return set()
    consts, carry = step.params["num_consts"], step.params["num_carry"]
    makers = {v: kernel for kernel in body.own for v in kernel.writes}
    carried = zip(map(body.root, body.block.outputs[:carry]), body.block.inputs[consts : consts + carry], strict=True)
    return {body.root(v) for v in body.block.outputs[carry:] if len(_users(v)) == 0} | {
        out for out, start in carried if out in makers and _replaces(makers[out], start)
    }


def _replaces(kernel: Kernel, start: Value) -> bool:
    """Whether a kernel makes of a value the one that takes its place."""
    return start in kernel.reads and (kernel.is_elementwise or kernel.step.traits.is_scatter)


def _slices(step: Step, body: Kernels, on_gpus: bool) -> _Use:
    """Returns what a scan's slices need.

    That is memory of their own; or a narrower copy of all of them where the body only ever casts them down: XLA does
    that once, before the loop, unless the casts cost nothing, as on GPUs.
    """
    if step.name != "scan":
        return {}
    first = step.params["num_consts"] + step.params["num_carry"]
    use: _Use = defaultdict(int)
    for value in body.block.inputs[first:]:
        casts = [user.outputs[0] for user in value.consumers if user.name == "convert_element_type"]
        widest = max(casts, key=lambda cast: cast.dtype.itemsize, default=value)
        if len(casts) == len(value.consumers) and widest.dtype.itemsize < value.dtype.itemsize and not on_gpus:
            use["temporaries"] += widest.bytes * step.params["length"]
        elif value.consumers:
            use["temporaries"] += value.bytes
    return use
