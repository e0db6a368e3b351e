"""Which communication is hidden behind computation, where overlap is asked for, and which is exposed.

A collective can run beside whatever neither waits for it nor is waited for by it; the values of the program say what
that is. A compiler starts a collective and waits for it within one body: so what hides it stands in the same turn of
the same loop, and a loop as a whole hides nothing that stands outside. A second of computation hides a second of
communication once, because links carry one collective after the other; collectives take what stands nearest to them,
in their order. Which kinds of collectives a compiler starts early at all is the hardware's to say (`Hardware.hides`).

That is what a schedule can reach at most: a compiler may find less, and `plan` counts what it did find.
"""

from collections.abc import Callable, Iterable, Sequence

from ..reading.communication import Collective
from ..reading.kernels import Kernel, Kernels
from ..reading.walk import Step
from .timing import Network, kernel_time


def hidden_times(kernels: Kernels, collectives: Sequence[Collective], network: Network) -> list[float]:
    """Returns for each collective the seconds of one call that computation hides.

    Args:
        kernels: those of the whole program.
        collectives: the program's.
        network: how processors are joined; its hardware computes, and says what its compiler hides.
    """
    hardware, sending = network.hardware, dict[Step, float]()
    for c in collectives:
        if c.kind in hardware.hides:
            sending[c.step] = sending.get(c.step, 0.0) + network.collective_time(c)

    def computing(kernel: Kernel) -> float:
        return 0.0 if kernel.step.blocks else float(kernel_time(kernel, hardware).total)

    shares = {
        step: seconds / sending[step] if sending[step] else 0.0
        for body in _bodies(kernels)
        for step, seconds in _hidden_in(body, sending, computing).items()
    }
    return [network.collective_time(c) * c.count * shares.get(c.step, 0.0) for c in collectives]


def _bodies(kernels: Kernels) -> Iterable[Kernels]:
    yield kernels
    for inner in kernels.inner.values():
        for one in inner:
            yield from _bodies(one)


def _hidden_in(body: Kernels, sending: dict[Step, float], computing: Callable[[Kernel], float]) -> dict[Step, float]:
    """Returns the hidden seconds of one execution of each collective that stands in a body."""
    if not any(kernel.step in sending for kernel in body.own):
        return {}
    waits_for = _ancestors(body)
    free = [computing(kernel) for kernel in body.own]
    hidden: dict[Step, float] = {}
    for place, kernel in enumerate(body.own):
        if kernel.step not in sending:
            continue
        left = sending[kernel.step]
        beside = (
            other
            for other in range(len(free))
            if free[other] and not (waits_for[place] >> other | waits_for[other] >> place) & 1
        )
        for other in sorted(beside, key=lambda other: abs(other - place)):
            taken = min(left, free[other])
            left, free[other] = left - taken, free[other] - taken
            if not left:
                break
        hidden[kernel.step] = sending[kernel.step] - left
    return hidden


def _ancestors(body: Kernels) -> list[int]:
    """Returns what each kernel of a body waits for: a number whose bit n is the body's kernel n."""
    made_by = {value: place for place, kernel in enumerate(body.own) for value in kernel.writes}
    waits_for: list[int] = []
    for kernel in body.own:
        places = {made_by[value] for value in kernel.reads if value in made_by}
        everything = 0
        for place in places:
            everything |= waits_for[place] | 1 << place
        waits_for.append(everything)
    return waits_for
