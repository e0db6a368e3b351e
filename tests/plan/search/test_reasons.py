"""The reasons of a search are the differences that `explain` gives with and without a rule, to rounding."""

import pytest
from hypothesis import HealthCheck, given, settings
from test_programs import programs

import meshax as mx
from extent import WHOLE
from meshax.models.presets import PRESETS
from meshax.plan.printing.units import show_bytes, show_seconds
from meshax.plan.search.equivalence import splits_of
from meshax.plan.search.layout_search import search
from meshax.testing import forward_and_gradient
from meshax.train.preset_steps import preset_target


def said(here, other, hardware):
    """What a rule saves and costs, in the words of a reason: from the reports with it, and without it."""
    if other is None:
        return "cannot be left out alone"
    seconds = other.seconds(hardware) - here.seconds(hardware)
    memory = other.memory["peak"] - here.memory["peak"]
    amounts = {show_bytes(abs(memory)): memory, show_seconds(abs(seconds)): seconds if abs(seconds) >= 1e-9 else 0}
    saves = " and ".join(text for text, amount in amounts.items() if amount > 0)
    costs = " and ".join(text for text, amount in amounts.items() if amount < 0)
    words = [f"{verb} {what}" for verb, what in (("saves", saves), ("costs", costs)) if what]
    return " and ".join(words) or "changes nothing"


def check_reasons(candidate, fn, args, donate, hardware):
    """Explains the program once more, with all rules and without each of them."""

    def explain(rules, **roles):
        try:
            return mx.spmd(fn, candidate.mesh, mx.Layout(rules, **roles), donate).explain(*args)
        except mx.LayoutError:
            return None

    layout = candidate.layout
    roles = {"params": dict(layout.params), "optimizer": dict(layout.optimizer)}
    here = explain(dict(layout.rules), **roles)
    assert (candidate.seconds, candidate.memory) == (here.seconds(hardware), here.memory["peak"])
    wanted = []
    for name, axes in layout.rules:
        without = explain({n: a for n, a in layout.rules if n != name}, **roles)
        wanted.append(f"{name}:{'+'.join(axes)} {said(here, without, hardware)}")
    for role, rules in roles.items():
        if rules:
            shown = " ".join(f"{name}:{'+'.join(axes)}" for name, axes in rules.items())
            wanted.append(f"{role} {shown} {said(here, explain(dict(layout.rules)), hardware)}")
            break
    parts = candidate.why.split("; ")
    assert parts[: len(wanted)] == wanted
    assert len(parts) <= max(len(wanted), 1) + 1


def check_that_equal_ones_are_merged(candidates):
    """No two of them split the same tensors alike, over equally many processors, at the same cost."""
    keys = []
    for c in candidates:
        sizes = {}
        for axis, places in splits_of(c.report).items():
            sizes[places] = sizes.get(places, 1) * c.mesh.axes[axis]
        keys.append((frozenset(sizes.items()), f"{c.seconds:.6g}", c.memory, c.wire_bytes))
    assert len(set(keys)) == len(keys)


@settings(
    max_examples=20 if WHOLE else 2,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(programs())
def test_of_random_programs(drawn):
    inputs, steps, _, _ = drawn

    def run(*inputs):
        pool = list(inputs)
        for step in steps:
            pool.append(step(pool))
        return pool[-1], pool[len(inputs)]

    fn = forward_and_gradient(run, inputs)
    found = search(fn, inputs, [mx.Mesh("x:2 y:4", abstract=True)], hardware="cpu")
    check_that_equal_ones_are_merged(found)
    for candidate in found[:2]:
        check_reasons(candidate, fn, inputs, (), "cpu")


@pytest.mark.exhaustive
@pytest.mark.parametrize("preset", PRESETS)
def test_of_presets(preset):
    target, mesh = preset_target(preset), mx.Mesh("data:4 model:8", abstract=True)
    found = search(target.fn, target.args, [mesh], hardware="tpu-v3", memory="1TB", donate=target.donate)
    check_that_equal_ones_are_merged(found)
    for candidate in found[:2]:
        check_reasons(candidate, target.fn, target.args, target.donate, "tpu-v3")
