"""The cost model, by hand: rooflines, tiles and rings."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from meshax.plan.cost.hardware import Hardware, Link
from meshax.plan.cost.timing import Network, Time, kernel_time

MACHINE = Hardware(
    "machine",
    {"bfloat16": 4e12, "float32": 1e12},
    memory=1e9,
    memory_bandwidth=1e11,
    inside=Link(1e-6, 1e8),
    flops_efficiency=0.5,
    memory_efficiency=0.25,
    overhead=1e-5,
)


def struct(*dims, dtype=np.float32):
    return mx.tensor(jax.ShapeDtypeStruct([d.size for d in dims], dtype), dims)


def report(fn, *args, layout="", mesh="data:2 model:4"):
    return mx.spmd(fn, mx.Mesh(mesh, abstract=True), layout).explain(*args)


def product(n, dtype=np.float32, k=None, m=None):
    rows, inner, cols = mx.dims(rows=n, inner=k or n, cols=m or n)
    args = struct(rows, inner, dtype=dtype), struct(inner, cols, dtype=dtype)
    (kernel,) = report(lambda a, b: mx.einsum(a, b, over=inner), *args).kernels.all()
    return kernel


def test_a_large_product_is_bound_by_its_flops():
    assert kernel_time(product(4096), MACHINE) == Time(compute=2 * 4096**3 / 0.5e12 + 1e-5)
    assert kernel_time(product(4096, jnp.bfloat16), MACHINE) == Time(compute=2 * 4096**3 / 2e12 + 1e-5)


def test_a_small_product_is_bound_by_its_bytes():
    assert kernel_time(product(64), MACHINE) == Time(memory=3 * 64**2 * 4 / 0.25e11 + 1e-5)


def test_elementwise_work_is_memory_traffic():
    n = mx.Dim("n", 1000)
    (kernel,) = report(lambda x: mx.tanh(x) + 1, struct(n)).kernels.all()
    assert kernel_time(kernel, MACHINE) == Time(memory=2 * 4000 / 0.25e11 + 1e-5)


def test_stacks_of_loops_are_filled_with_zeros_and_copied_into_where_the_hardware_says_so():
    n, m, turns = mx.dims(n=1024, m=512, turns=3)

    def loop(x, w):
        return mx.scan(lambda x, _: (x, mx.einsum(x, w, over=n)), x, None, over=turns)[1]

    (kernel,) = (k for k in report(loop, struct(n), struct(n, m)).kernels.all() if k.stacked)
    plain, copied = (kernel_time(kernel, replace(MACHINE, copies_into_stacks=copies)) for copies in (False, True))
    assert copied.memory - plain.memory == pytest.approx(3 * 512 * 4 / 0.25e11) and copied.compute == plain.compute


def test_elements_take_what_the_hardware_says_on_top():
    n, m = mx.dims(n=1000, m=3)
    cpu = replace(MACHINE, per_element={"transposed": 1e-8, "reduced": 1e-9})
    (turned,) = report(lambda x: mx.transpose(x, (m, n)), struct(n, m)).kernels.all()
    assert kernel_time(turned, MACHINE).memory == pytest.approx(2 * 12000 / 0.25e11 + 1e-5)
    assert kernel_time(turned, cpu).memory == pytest.approx(2 * 12000 / 0.25e11 + 1e-5 + 3000 * 1e-8)
    rows, inner, cols = mx.dims(rows=4096, inner=4096, cols=4096)
    (leading,) = report(
        lambda a, b: mx.einsum(a, b, over=inner), struct(inner, rows), struct(inner, cols)
    ).kernels.all()
    assert kernel_time(leading, cpu) == Time(compute=2 * 4096**3 / 0.5e12 + (1e-5 + 4096**2 * 1e-8))


@pytest.mark.parametrize(
    ("sizes", "growth"),
    [
        ((4096, 4096, 4096), 1.0),
        ((4097, 4096, 4096), 4224 / 4097),
        ((4000, 4096, 4000), (4096 / 4000) ** 2),
        ((4000, 4000, 4000), (4096 / 4000) ** 3),
        ((1, 65536, 65536), 1.0),  # a vector is no tile
    ],
)
def test_products_are_rounded_up_to_tiles(sizes, growth):
    rows, inner, cols = sizes
    kernel = product(rows, k=inner, m=cols)
    tiles = replace(MACHINE, tile=128, memory_bandwidth=1e15)
    wanted = 2 * rows * inner * cols * growth / 0.5e12 + 1e-5
    assert kernel_time(kernel, tiles).compute == pytest.approx(wanted)


def test_a_tile_makes_a_product_at_most_8_times_as_long():
    kernel = product(2, k=2, m=2)
    tiles = replace(MACHINE, tile=128, memory_bandwidth=1e15)
    assert kernel_time(kernel, tiles).compute == pytest.approx(8 * 2 * 8 / 0.5e12 + 1e-5)


def network(machine):
    return Network.of(machine, mx.Mesh("data:2 model:4", abstract=True))


@pytest.mark.parametrize(
    ("kind", "axes", "hops"),
    [
        ("all-reduce", ["model"], 6),
        ("all-reduce", ["data"], 2),
        ("all-reduce", ["data", "model"], 8),  # 1 + 3 hops, there and back
        ("all-gather", ["model"], 3),
        ("reduce-scatter", ["model"], 3),
        ("all-to-all", ["model"], 3),
        ("permute", ["model"], 1),
    ],
)
def test_a_ring_takes_its_hops_and_its_bytes(kind, axes, hops):
    assert network(MACHINE).ring_time(kind, axes, 5000) == pytest.approx(hops * 1e-6 + 5000 / 1e8)


def test_a_collective_takes_its_start_and_the_pace_of_its_kind():
    slow = replace(MACHINE, inside=Link(1e-6, 1e8, start=1e-4), slowness={"permute": 3.0})
    ring_time = network(slow).ring_time
    assert ring_time("permute", ["model"], 5000) == pytest.approx(1e-4 + 1e-6 + 3 * 5000 / 1e8)
    assert ring_time("all-gather", ["model"], 5000) == pytest.approx(1e-4 + 3e-6 + 5000 / 1e8)
    assert ring_time("permute", ["model"], 5000, joined=True) == pytest.approx(3 * 5000 / 1e8)


def test_a_ring_is_as_fast_as_its_slowest_link():
    nodes = replace(MACHINE, between=Link(1e-3, 1e6), node=4)
    ring_time = network(nodes).ring_time
    assert ring_time("permute", ["model"], 5000) == pytest.approx(1e-6 + 5000 / 1e8)
    assert ring_time("permute", ["data"], 5000) == pytest.approx(1e-3 + 5000 / 1e6)
    # the four processors of a host share its link in a ring, and each needs its part of it in an all-to-all
    both = ["data", "model"]
    assert ring_time("all-reduce", both, 5000) == pytest.approx(2 * (1e-3 + 3e-6) + 5000 / 4e6)
    assert ring_time("all-to-all", both, 5000) == pytest.approx(1e-3 + 3e-6 + 5000 / 1e6)
    fast = replace(nodes, between=Link(1e-3, 1e9))
    assert network(fast).ring_time("all-reduce", both, 5000) == pytest.approx(2 * (1e-3 + 3e-6) + 5000 / 1e8)


@pytest.mark.parametrize(
    ("axes", "node", "across", "hosts"),
    [
        ("data:4 model:8", 8, "", {"data": 4, "model": 1}),
        ("data:4 model:8", 8, "model", {"data": 1, "model": 4}),
        ("data:4 model:2", 8, "", {"data": 1, "model": 1}),
        ("data:4 model:16", 8, "", {"data": 4, "model": 2}),
        ("data:16 model:4", 8, "", {"data": 8, "model": 1}),
        ("a:2 b:2 c:4", 8, "", {"a": 2, "b": 1, "c": 1}),
        ("a:2 b:2 c:4", 8, "b", {"a": 1, "b": 2, "c": 1}),
        ("a:2 b:2 c:4", 4, "c+a", {"a": 1, "b": 1, "c": 4}),
        ("data:1024 model:2", 0, "", {"data": 1, "model": 1}),
    ],
)
def test_the_last_axes_are_the_nearest(axes, node, across, hosts):
    mesh = mx.Mesh(axes, abstract=True, across=across)
    machine = replace(MACHINE, between=Link(1e-3, 1e6), node=node)
    assert Network.of(machine, mesh).hosts == hosts
    assert Network.of(machine, mesh).crossing == [axis for axis, count in hosts.items() if count > 1]


def test_a_report_adds_everything_up():
    rows, inner, turns = mx.dims(rows=64, inner=64, turns=5)

    def fn(x):
        return mx.scan(lambda x, _: (mx.tanh(x) + mx.sum(x), None), x, over=turns)[0]

    made = report(fn, struct(rows, inner), layout="rows:data", mesh="data:2")
    time = made.time(MACHINE)
    kernels = [kernel_time(k, MACHINE) for k in made.kernels.all()]

    assert time.communication == pytest.approx(5 * (2 * 1e-6 + 4 / 1e8))
    assert time.memory == pytest.approx(5 * sum(k.memory for k in kernels))
    assert time.compute == 0
    assert made.seconds(MACHINE) == time.total == time.compute + time.memory + time.communication


def test_times_add_up():
    assert Time(1, 2, 3) + Time(10, 20, 30) == Time(11, 22, 33)
