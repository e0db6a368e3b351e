"""Hosts with slow links between them: which axes go there, what it costs, and what the search makes of it."""

import jax
import numpy as np
import pytest

import meshax as mx
from meshax.plan.cost.hardware import find
from meshax.plan.explain.hosts import between_hosts, reason_inside
from meshax.plan.explain.text import predicted
from meshax.plan.search.layout_search import search
from meshax.train.preset_steps import preset_target

HOSTS = "h100x4@800Gbit/s"


def step(length):
    """A step of two layers: the longer the rows, the more processors that split `hidden` have to tell each other."""
    rows, places, width, inner = mx.dims(batch=4, length=length, d_model=1024, hidden=16384)

    def loss(w, x):
        h = mx.relu(mx.einsum(x, w["in"], out=(rows, places, inner)))
        return mx.mean(mx.square(mx.einsum(h, w["out"], out=x.dims)))

    def train(w, x):
        value, grads = mx.value_and_grad(loss)(w, x)
        return jax.tree.map(lambda p, g: p - g, w, grads), value

    def described(*dims):
        return mx.Tensor(jax.ShapeDtypeStruct([dim.size for dim in dims], np.float32), dims)

    w = {"in": mx.param(described(width, inner)), "out": mx.param(described(inner, width))}
    return train, (w, described(rows, places, width))


def explained(length, mesh, across=""):
    train, args = step(length)
    processors = mx.Mesh(mesh, abstract=True, across=across)
    return mx.spmd(train, processors, "batch:data hidden:model").explain(*args)


def test_the_axis_between_hosts_is_named_with_what_it_costs():
    report = explained(65536, "data:4 model:4")
    (line,) = between_hosts(report, find(HOSTS))
    assert line == "across hosts: data (4 hosts); 2.28 ms of communication a call goes over these"
    assert predicted(report, find(HOSTS)).splitlines()[1:] == report.as_dict(HOSTS)["between_hosts"] == [line]
    assert between_hosts(report, find("h100x16@800Gbit/s")) == between_hosts(report, find("cpu")) == []


@pytest.mark.parametrize(("mesh", "across"), [("model:4 data:4", ""), ("data:4 model:4", "model")])
def test_a_talkative_dim_between_hosts_is_warned_of(mesh, across):
    _, warning = between_hosts(explained(65536, mesh, across), find(HOSTS))
    assert warning == (
        "warning: hidden over model talk from host to host, 16.5 ms of communication a call; if data did instead, 3.23 "
        'ms: mesh "data:4 model:4", whose last axes stay inside a host, or mx.Mesh(..., across="data")'
    )
    assert len(between_hosts(explained(65536, mesh, "data"), find(HOSTS))) == 1


def test_the_search_puts_what_talks_most_inside_a_host():
    train, args = step(65536)
    pins = {"d_model": "", "length": ""}
    best = search(train, args, [mx.Mesh("data:4 model:4", abstract=True)], hardware=HOSTS, pins=pins)[0]
    assert mx.Layout(dict(best.layout.rules)) == mx.Layout("batch:data hidden:model")
    assert "model stays inside a host: from host to host, communication would take " in best.why
    assert reason_inside(best.report, find(HOSTS))[0] in best.why
    assert "inside a host" not in search(train, args, [best.mesh], hardware="h100x16@800Gbit/s", pins=pins)[0].why


@pytest.mark.exhaustive
@pytest.mark.parametrize(("batch", "talkative"), [(512, "batch"), (4096, "heads")])
def test_the_model_axis_of_a_large_model_on_eight_hosts(batch, talkative):
    """With 4,096 sequences a step, the layers' sums are larger than the gradients, and stay inside a host."""
    target = preset_target(name="lm-4.90b", model={}, sizes={"batch": batch, "length": 0})
    mesh = mx.Mesh("data:8 model:8", abstract=True)
    found = search(target.fn, target.args, [mesh], hardware="h100x8@400Gbit/s", exclude=("length",), donate=(0,))
    rules = dict(found[0].layout.rules)
    assert rules[talkative] == ("model",) and rules["heads"] != rules["batch"] and rules["d_ff"] == rules["heads"]
    assert "model stays inside a host: from host to host, communication would take " in found[0].why
