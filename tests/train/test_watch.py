"""What is read every few steps: how fast, without compiling and evaluating; the learning rate of that step; memory."""

import itertools
import types

import jax.numpy as jnp
import pytest

import meshax as mx
from meshax.launch.peers import Peers
from meshax.plan.cost.hardware import KNOWN
from meshax.train import watch as module
from meshax.train.config import TrainConfig
from meshax.train.loss_guard import Guard
from meshax.train.options import OptimizerOptions
from meshax.train.watch import Watch, memory_at_peak

OPTIMIZER = OptimizerOptions(rate=0.8, schedule="linear", warmup=0)


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def watched(monkeypatch, tmp_path):
    """A watch over a run of 8 steps that is not there, its clock, and what it has read."""
    clock, rows, readings = Clock(), [], []
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "of_device", lambda kind: KNOWN["h200"])
    report = types.SimpleNamespace(utilization=lambda machine: 0.5, seconds=lambda machine: 2.0)
    run = types.SimpleNamespace(
        config=TrainConfig(steps=8, log_every=2, optimizer=OPTIMIZER), unit="token", peers=Peers()
    )
    run.mesh, run.report, run.batches = mx.Mesh("x:1"), report, types.SimpleNamespace(position=0)
    display = types.SimpleNamespace(update=readings.append)
    metrics = types.SimpleNamespace(write=lambda step, **values: rows.append((step, values)))
    return Watch(run, display, metrics, Guard(tmp_path), 0), clock, rows, readings


def measured(loss):
    scalars = {"loss": loss, "norm": 3.0, "count": 60.0, "finite": True}
    return {name: mx.tensor(jnp.asarray(value), ()) for name, value in scalars.items()}


def test_a_reading(watched):
    watch, clock, rows, readings = watched
    seconds = itertools.chain([30.0], itertools.repeat(4.0))  # the first step compiles
    for step in range(1, 6):
        watch.run.batches.position = 100 + step
        watch.saw(step, measured(10.0 - step), {})
        clock.now += next(seconds)
        if step == 3:
            with watch.aside(step, "saving"):
                clock.now += 1000.0
    assert [reading.step for reading in readings] == [2, 4]
    for reading in readings:
        assert reading.per_second == 15.0 and reading.utilization == 0.25
    assert readings[0].left == 24.0 and readings[1].left == 16.0
    assert readings[0].rate == pytest.approx(0.7) and readings[1].rate == pytest.approx(0.5)  # of 8 steps 1 and 3 done
    assert rows[1] == (3, {"saving_seconds": 1000.0})
    assert rows[2] == (
        4,
        {"loss": 6.0, "rate": readings[1].rate, "norm": 3.0, "tokens_per_second": 15.0, "utilization": 0.25}
        | {"memory_bytes": readings[1].memory, "seconds_left": 16.0, "batches_read": 104},
    )


@pytest.mark.parametrize("machine", [None, KNOWN["cpu"]])
def test_no_share_of_a_peak_that_nobody_knows(watched, monkeypatch, machine):
    monkeypatch.setattr(module, "of_device", lambda kind: machine)
    watch, clock, _, readings = watched
    watch = Watch(watch.run, watch.display, watch.metrics, watch.guard, 0)
    for step in (1, 2, 3):
        watch.saw(step, measured(1.0), {})
        clock.now += 4.0
    assert [(reading.step, reading.utilization) for reading in readings] == [(2, 0.0)]


def test_the_last_step_is_read_whatever_its_number(watched):
    watch, clock, rows, _ = watched
    watch.run.config = TrainConfig(steps=3, log_every=2, optimizer=OPTIMIZER)
    for step in (1, 2, 3):
        watch.saw(step, measured(1.0), {})
        clock.now += 1.0
    watch.finish()
    watch.finish()
    assert [step for step, _ in rows] == [2, 3]


def test_a_loss_is_sent_for_when_it_is_there(watched):
    """On a GPU what is sent to the host later would wait for it, and so for the step."""
    done = []

    class Loss:
        array = property(lambda self: self)

        def block_until_ready(self):
            done.append("computed")

        def __float__(self):
            done.append("sent")
            return 1.0

    watch, *_ = watched
    watch.saw(1, measured(1.0) | {"loss": Loss()}, {})
    assert not done
    watch.saw(2, measured(1.0), {})
    assert done == ["computed", "sent"]


def test_memory_is_the_devices_or_of_cpus_the_processs():
    assert memory_at_peak(mx.Mesh("x:1")) > 10e6
    device = types.SimpleNamespace(platform="gpu", memory_stats=lambda: {"peak_bytes_in_use": 5})
    silent = types.SimpleNamespace(platform="gpu", memory_stats=lambda: None)
    for one, wanted in ((device, 5), (silent, 0)):
        mesh = types.SimpleNamespace(jax_mesh=types.SimpleNamespace(local_devices=[one]))
        assert memory_at_peak(mesh) == wanted


def test_a_step_that_ends_while_the_one_before_is_being_read_has_taken_its_time(watched):
    watch, clock, _, readings = watched
    watch.run.config = TrainConfig(steps=8, log_every=1, optimizer=OPTIMIZER)
    show = watch.display.update

    def slowly(reading):
        show(reading)
        clock.now += 5.0

    watch.display.update = slowly
    clock.now += 30.0
    for step in range(1, 5):
        watch.saw(step, measured(1.0), {})  # reads the step before, for five seconds: as long as this one runs
    assert [reading.per_second for reading in readings[1:]] == [60.0 / 5.0] * 2
