"""Calibration runs on what there is, and gives numbers that the cost model can use."""

import math

from meshax.bench.calibrate import Calibration, Scale, as_text
from meshax.plan.hardware import load

TINY = Scale(products=((16, 8, 16), (8, 16, 8)), stream=256, messages=(8, 64, 512))


def calibrated():
    calibration = Calibration("cpu")
    calibration.scale = TINY
    return calibration, list(calibration.run())


def test_every_measurement_is_a_positive_number(tmp_path):
    calibration, measured = calibrated()

    assert len(measured) == calibration.count == 2 * 2 + 2 + 3 + 1 + 3
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
    assert set(hardware.slowness) == {"all-gather", "reduce-scatter", "all-to-all", "permute"}
    assert all(0 < n < math.inf for n in hardware.slowness.values())
    assert hardware.measured

    path = tmp_path / "hardware.json"
    path.write_text(hardware.to_json())
    assert load(path) == hardware

    text = as_text(measured, hardware)
    assert "start a small kernel" in text
    assert "a processor: bfloat16 " in text
