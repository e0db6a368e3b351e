"""How much memory processors have: what they say, what their kind has, their share of a machine."""

import os
from types import SimpleNamespace

import pytest

import meshax as mx
from meshax.plan.cost.limits import memory_of_device, memory_there


@pytest.mark.parametrize(
    ("size", "stats", "limit"),
    [("16GB", {"bytes_limit": 7}, 16e9), ("", {"bytes_limit": 7}, 7), ("", {}, 80e9), ("", None, 80e9)],
)
def test_what_is_given_what_a_device_says_what_its_kind_has(size, stats, limit):
    device = SimpleNamespace(memory_stats=lambda: stats, device_kind="NVIDIA H100 80GB HBM3")
    assert memory_of_device(device, size) == limit


def test_virtual_processors_share_the_machine():
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_there(mx.Mesh("data:2 model:4")) * 8 == memory_there(mx.Mesh("x:1")) == machine
