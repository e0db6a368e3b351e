"""Calibration runs on what there is, and gives numbers that the cost model can use."""

import math

import jax
import pytest

from extent import some
from meshax.bench.calibrate import Calibration, Scale, as_text
from meshax.plan.cost.hardware import Link, load
from meshax.plan.reading.primitives import WORK

TINY = Scale(products=((16, 8, 16), (8, 16, 8)), stream=256, messages=(8, 64, 512), rows=(4, 8))


def calibrated(processors=8):
    calibration = Calibration(jax.devices("cpu")[:processors])
    calibration.scale = TINY
    return calibration, list(calibration.run())


def test_every_measurement_is_a_positive_number(tmp_path):
    calibration, measured = calibrated()

    assert len(measured) == calibration.count == 2 * 2 + 2 + 2 * 4 + 3 + 1 + 4
    assert measured == calibration.measured
    assert len({m.what for m in measured}) == len(measured)
    for m in measured:
        assert math.isfinite(m.seconds) and m.seconds > 0, m
        assert math.isfinite(m.rate) and m.rate > 0, m

    hardware = calibration.hardware("tiny")
    assert set(hardware.flops) == {"bfloat16", "float32"}
    numbers = [*hardware.flops.values(), hardware.memory, hardware.memory_bandwidth, hardware.overhead]
    assert all(math.isfinite(n) and n > 0 for n in [*numbers, hardware.inside.bandwidth])
    assert hardware.inside.latency >= 0 and hardware.inside.start >= 0
    assert list(hardware.per_element) == list(WORK)
    assert all(0 < n < 1e-3 for n in hardware.per_element.values())
    assert set(hardware.slowness) <= {"all-gather", "reduce-scatter", "all-to-all", "permute"}
    assert all(0 < n < math.inf for n in hardware.slowness.values())
    assert hardware.measured

    path = tmp_path / "hardware.json"
    path.write_text(hardware.to_json())
    assert load(path) == hardware

    text = as_text(measured, hardware)
    assert "start a small kernel" in text
    assert "a processor: bfloat16 " in text


@pytest.mark.parametrize("processors", some([1, 2, 3, 6], 1, 3))
def test_any_number_of_processors(processors, tmp_path):
    collectives = {1: 0, 2: 7, 3: 7, 6: 8}[processors]
    calibration, measured = calibrated(processors)
    hardware = calibration.hardware()

    assert len(measured) == calibration.count == 2 * 2 + 2 + 2 * 4 + collectives
    assert hardware.inside.start >= 0 and hardware.inside.latency >= 0 and hardware.inside.bandwidth > 0
    path = tmp_path / "hardware.json"
    path.write_text(hardware.to_json())
    assert load(path) == hardware


def test_what_cannot_be_told_from_an_all_reduce_is_as_fast():
    calibration = Calibration(jax.devices("cpu")[:2])
    calibration._link = Link(1e-6, 1e9, start=1e-5)
    calibration._kind("permute", 1000, 1.2e-5 + 8e-6, hops=2)
    calibration._kind("all-gather", 1000, 5e-6, hops=1)
    calibration._kind("reduce-scatter", 1000, -1e-6, hops=1)
    assert calibration.hardware().slowness == {"permute": pytest.approx(2.0)}


def test_elements_take_more_only_where_they_are_measured_to():
    calibration = Calibration(jax.devices("cpu")[:1])
    calibration.scale = Scale(TINY.products, TINY.stream, TINY.messages)  # as on GPUs and TPUs
    assert calibration.count == len(list(calibration.run()))
    assert calibration.hardware().per_element == {}
