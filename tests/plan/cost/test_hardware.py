"""Descriptions of hardware: which is meant, which link and which peak count, and their files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import meshax as mx
from meshax.plan.cost.hardware import (
    KNOWN,
    Hardware,
    Link,
    bandwidth_of_device,
    cache_folder,
    calibrated_path,
    find,
    load,
    of_device,
    peak_of_device,
)
from messages import pinned

NODES = Hardware(
    "nodes",
    {"bfloat16": 4e12, "float32": 1e12},
    memory=1e9,
    memory_bandwidth=1e9,
    inside=Link(1e-6, 1e9),
    between=Link(1e-5, 1e8),
    node=8,
)


@pytest.mark.parametrize(
    ("dtype", "peak"),
    [("bfloat16", 4e12), ("float32", 1e12), ("int8", 4e12), ("float16", 1e12), ("float64", 1e12), ("uint4", 1e12)],
)
def test_the_peak_of_a_dtype_is_that_of_the_nearest_wider(dtype, peak):
    assert NODES.peak(dtype) == peak


@pytest.mark.parametrize(
    ("text", "node", "bandwidth"),
    [
        ("h100x8@400Gbit/s", 8, 50e9 / 8),
        ("h100@400Gbit/s", 8, 50e9 / 8),
        ("H100x4@3.2Tbps", 4, 100e9),
        ("tpu v5ex256@100GB/s", 256, 100e9 / 256),
        ("cpux2@10 Gbit/s", 2, 0.625e9),
    ],
)
def test_hosts_that_are_joined(text, node, bandwidth):
    machine, alone = find(text), find(text.partition("@")[0].removesuffix(f"x{node}"))
    assert (machine.name, machine.node, machine.between.bandwidth) == (text, node, pytest.approx(bandwidth))
    assert replace(machine, name=alone.name, node=alone.node, between=alone.between) == alone


@pytest.mark.parametrize("name", KNOWN)
def test_known_hardware_has_the_name_that_jax_gives_its_devices(name):
    assert KNOWN[name].name == name and of_device(KNOWN[name].kind) is KNOWN[name]


def test_only_a_cpu_takes_longer_for_some_elements():
    assert {name for name, hardware in KNOWN.items() if hardware.per_element} == {"cpu"}


@pytest.mark.parametrize("name", KNOWN)
def test_known_hardware_makes_sense(name):
    hardware = KNOWN[name]
    speeds = [*hardware.flops.values(), hardware.memory, hardware.memory_bandwidth, hardware.inside.bandwidth]
    assert min(speeds) > 0
    assert 0 < hardware.flops_efficiency <= 1
    assert 0 < hardware.memory_efficiency <= 1
    assert hardware.between is None or hardware.between.bandwidth <= hardware.inside.bandwidth


@pytest.mark.parametrize("hardware", [NODES, *KNOWN.values()], ids=lambda h: h.name)
def test_a_description_survives_its_file(hardware, tmp_path):
    path = tmp_path / "machine.json"
    path.write_text(hardware.to_json())

    assert load(path) == hardware
    assert find(str(path)) == hardware


def test_a_file_without_starts_and_paces_is_read(tmp_path):
    data = json.loads(NODES.to_json())
    for link in ("inside", "between"):
        del data[link]["start"]
    del data["slowness"], data["per_element"]
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(data))
    assert load(path) == NODES


def test_hardware_by_name():
    assert find("h200") is KNOWN["h200"]
    assert find("TPU v5p") is KNOWN["tpu-v5p"]
    assert find(NODES) is NODES


def test_this_machine_is_what_was_calibrated(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find(None) is find("this") is KNOWN["cpu"], "nothing was calibrated yet"

    assert calibrated_path() == tmp_path / "meshax" / "hardware.json"
    calibrated_path().parent.mkdir()
    calibrated_path().write_text(NODES.to_json())
    assert find(None) == find("this") == NODES

    x = mx.tensor([1.0, 2.0], "n")
    report = mx.spmd(lambda x: x + 1, mx.Mesh("data:1", abstract=True), "").explain(x)
    assert report.seconds() == report.seconds(NODES) != report.seconds("cpu")


def test_without_xdg_the_cache_is_at_home(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert calibrated_path() == Path.home() / ".cache" / "meshax" / "hardware.json"


def test_a_user_without_a_home_has_calibrated_nothing(monkeypatch):
    """As containers start some: no HOME, and nobody of that number among the users."""
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert cache_folder() is None and calibrated_path() is None
    assert find("this") is KNOWN["cpu"] and of_device("something new") is None


def written(text):
    """Writes a file into the current folder, so that messages name it without a path."""
    Path("machine.json").write_text(text)
    return "machine.json"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def with_changes(**changes):
    return json.dumps(json.loads(NODES.to_json()) | changes)


test_messages = pinned(
    {
        "no such name": (
            mx.ArgumentError,
            lambda: find("h20"),
            """
            there is no hardware 'h20'.
              rule: hardware is a name, or with hosts h100x8@400Gbit/s, "this" for what was calibrated, or a .json file.
              fix: did you mean "h200"?
            """,
        ),
        "no speed between hosts": (
            mx.ArgumentError,
            lambda: find("h100x8@fast"),
            """
            'h100x8@fast' does not say how hosts are joined.
              rule: after the name come the processors in a host, and the bits or bytes that it sends in a second.
              fix: write for example h100x8@400Gbit/s, or h100@50GB/s for as many in a host as there usually are.
            """,
        ),
        "no number of processors in a host": (
            mx.ArgumentError,
            lambda: find("tpu-v4@10GB/s"),
            """
            'tpu-v4@10GB/s' does not say how hosts are joined.
              rule: after the name come the processors in a host, and the bits or bytes that it sends in a second.
              fix: write for example h100x8@400Gbit/s, or h100@50GB/s for as many in a host as there usually are.
            """,
        ),
        "no file": (
            mx.ArgumentError,
            lambda: load("nothing.json"),
            """
            'nothing.json' does not describe hardware.
              values: FileNotFoundError: [Errno 2] No such file or directory: 'nothing.json'
              fix: write one with: meshax bench calibrate --out FILE.
            """,
        ),
        "no JSON": (
            mx.ArgumentError,
            lambda: load(written("tea")),
            """
            'machine.json' does not describe hardware.
              values: JSONDecodeError: Expecting value: line 1 column 1 (char 0)
              fix: write one with: meshax bench calibrate --out FILE.
            """,
        ),
        "a field too many": (
            mx.ArgumentError,
            lambda: load(written(with_changes(colour="red"))),
            """
            'machine.json' does not describe hardware.
              values: TypeError: Hardware.__init__() got an unexpected keyword argument 'colour'
              fix: write one with: meshax bench calibrate --out FILE.
            """,
        ),
        "a link that is missing": (
            mx.ArgumentError,
            lambda: load(written(with_changes(inside=None))),
            """
            'machine.json' does not describe hardware.
              values: TypeError: meshax.plan.cost.hardware.Link() argument after ** must be a mapping, not NoneType
              fix: write one with: meshax bench calibrate --out FILE.
            """,
        ),
        "a link of no speed": (
            mx.ArgumentError,
            lambda: load(written(with_changes(inside={"latency": 0.0, "bandwidth": 0}))),
            """
            'machine.json' does not describe hardware.
              rule: speeds and sizes are positive, delays not negative.
            """,
        ),
        "a link that is there before it starts": (
            mx.ArgumentError,
            lambda: load(written(with_changes(inside={"latency": 0.0, "bandwidth": 1e9, "start": -1.0}))),
            """
            'machine.json' does not describe hardware.
              rule: speeds and sizes are positive, delays not negative.
            """,
        ),
        "no products": (
            mx.ArgumentError,
            lambda: load(written(with_changes(flops=None))),
            """
            'machine.json' does not describe hardware.
              values: AttributeError: 'NoneType' object has no attribute 'values'
              fix: write one with: meshax bench calibrate --out FILE.
            """,
        ),
        "a pace that is no number": (
            mx.ArgumentError,
            lambda: load(written(with_changes(slowness={"permute": float("nan")}))),
            """
            'machine.json' does not describe hardware.
              rule: speeds and sizes are positive, delays not negative.
            """,
        ),
        "the pace of no collective": (
            mx.ArgumentError,
            lambda: load(written(with_changes(slowness={"all_gather": 2.0}))),
            """
            'machine.json' speaks of 'all_gather', which is no collective.
              fix: did you mean "all-gather"?
            """,
        ),
        "no kind of work": (
            mx.ArgumentError,
            lambda: load(written(with_changes(per_element={"transpose": 1e-9}))),
            """
            'machine.json' speaks of elements that are 'transpose', which is no kind of work.
              fix: did you mean "transposed"?
            """,
        ),
        "a speed of nothing": (
            mx.ArgumentError,
            lambda: load(written(with_changes(memory_bandwidth=0))),
            """
            'machine.json' does not describe hardware.
              rule: speeds and sizes are positive, delays not negative.
            """,
        ),
    }
)


@pytest.mark.parametrize(
    ("kind", "name"),
    {
        "TPU v2": "tpu-v2", "TPU v4": "tpu-v4", "TPU v5 lite": "tpu-v5e", "TPU v5": "tpu-v5p", "TPU v5p": "tpu-v5p",
        "TPU v6 lite": "tpu-v6e", "NVIDIA H200": "h200", "NVIDIA A100-SXM4-80GB": "a100",
        "NVIDIA H100 80GB HBM3": "h100", "cpu": "cpu", "NVIDIA A100-PCIE-40GB": "a100",
    }.items(),
)  # fmt: skip
def test_devices_by_jaxs_names(kind, name):
    assert of_device(kind).name == name


@pytest.mark.parametrize("kind", ["something new", "NVIDIA GeForce RTX 4090", "NVIDIA H100 PCIe", "NVIDIA GH200 480GB"])
def test_devices_that_nobody_knows(kind, tmp_path, monkeypatch):
    """Nothing is a share of another machine's peak; what was calibrated counts for such devices alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert of_device(kind) is None and peak_of_device(kind, "bfloat16") == bandwidth_of_device(kind) == 0
    calibrated_path().parent.mkdir()
    calibrated_path().write_text(replace(KNOWN["h200"], name="this", kind=kind).to_json())
    assert of_device(kind).name == "this" and of_device("another") is None
    assert peak_of_device(kind, "bfloat16") == 989e12 and bandwidth_of_device(kind) == 4.8e12


def test_virtual_processors_have_no_peak():
    """They share cores: one of one has all of them, one of eight has not."""
    assert peak_of_device("cpu", "float32") == bandwidth_of_device("cpu") == 0


def test_a_program_that_is_launched_as_a_whole(tmp_path):
    replaying = KNOWN["h200"].replaying()
    assert replaying.overhead < KNOWN["h200"].overhead and replaying.inside.start > 0
    assert replaying.replaying() == replaying
    assert KNOWN["tpu-v2"].replaying() is KNOWN["tpu-v2"]
    (tmp_path / "h200.json").write_text(KNOWN["h200"].to_json())
    assert load(tmp_path / "h200.json") == KNOWN["h200"]
