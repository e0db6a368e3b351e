"""The script for Slurm and the manifest for Kubernetes: as far as they can be tried without either."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launched import arguments, final_state
from meshax.cli.commands import parse_command
from meshax.launch.place import find_place
from meshax.train.options import TrainOptions
from processes import environment, free_port
from runs import write_text

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"
SCRIPT = CLUSTER / "train.slurm"


def sbatch(folder, status, **changes):
    """Runs the script with an srun that ends so; returns its exit status, and what srun and scontrol were asked."""
    for name, code in (("srun", status), ("scontrol", 0)):
        path = folder / name
        path.write_text(f'#!/bin/bash\nprintf "%s\\n" {name} "$@" >> {folder}/asked\nexit {code}\n')
        path.chmod(0o755)
    (folder / "asked").unlink(missing_ok=True)
    paths = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "77", **changes}
    done = subprocess.run(["bash", str(SCRIPT), "--seed", "3"], env=paths, capture_output=True, text=True, timeout=60)
    return done.returncode, (folder / "asked").read_text().splitlines()


def test_the_script_is_a_script():
    assert subprocess.run(["bash", "-n", str(SCRIPT)], capture_output=True).returncode == 0
    options = re.findall(r"^#SBATCH (--[a-z-]+)=?(\S*)$", SCRIPT.read_text(), re.MULTILINE)
    assert dict(options)["--signal"] == "TERM@300" and dict(options)["--requeue"] == ""


def test_srun_is_asked_for_a_command_that_there_is(tmp_path):
    status, asked = sbatch(tmp_path, 0, TEXT="texts", OUT="there")
    assert status == 0 and asked[:3] == ["srun", "--kill-on-bad-exit=1", "meshax"]
    command = parse_command(asked[3:])
    options = command.options()
    assert command.distributed and isinstance(options, TrainOptions)
    assert (options.data.text, options.out, options.seed) == (("texts",), "there", 3)


@pytest.mark.parametrize(
    ("status", "again"), [(0, False), (1, False), (2, False), (69, True), (137, True), (143, True)]
)
def test_what_is_queued_again(tmp_path, status, again):
    code, asked = sbatch(tmp_path, status)
    assert code == status and (asked[-3:] == ["scontrol", "requeue", "77"]) == again


def test_it_is_not_queued_for_ever(tmp_path):
    assert "scontrol" not in sbatch(tmp_path, 69, SLURM_RESTART_COUNT="20")[1]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_what_srun_sets_is_enough(tmp_path):
    """Two processes that know nothing of each other but by the environment."""
    run, text = tmp_path / "run", write_text(tmp_path / "text")
    command = arguments(text, run, 4, "--mesh", "data:2 model:1", "--distributed")
    job = {"SLURM_JOB_ID": str(free_port()), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    job |= {"SLURM_STEP_NUM_NODES": "1", "JAX_PLATFORMS": "cpu"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "meshax", *command],
            env=environment(**job, SLURM_PROCID=str(process), SLURM_LOCALID=str(process)),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for process in range(2)
    ]  # fmt: skip
    results = [process.communicate(timeout=280) for process in started]
    assert [process.returncode for process in started] == [0, 0], results
    assert results[0][0].startswith("perplexity ") and results[1][0] == ""
    assert final_state(run)[0] == 4


def shape(value):
    """Returns the names of a tree, without its values."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items()}
    return [shape(one) for one in value[:1]] if isinstance(value, list) and isinstance(value[0], dict) else type(value)


CONTAINER = {
    "name": str, "image": str, "command": list, "args": list, "ports": [{"containerPort": int}],
    "resources": {"limits": {"nvidia.com/gpu": int}}, "volumeMounts": [{"name": str, "mountPath": str}],
}  # fmt: skip
POD = {
    "subdomain": str, "restartPolicy": str, "terminationGracePeriodSeconds": int, "containers": [CONTAINER],
    "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}}],
}  # fmt: skip
RULE = {"action": str, "onExitCodes": {"containerName": str, "operator": str, "values": list}}
JOB = {
    "apiVersion": str, "kind": str, "metadata": {"name": str},
    "spec": {
        "completions": int, "parallelism": int, "completionMode": str, "backoffLimit": int,
        "podFailurePolicy": {"rules": [RULE]},
        "template": {"metadata": {"labels": {"app": str}}, "spec": POD},
    },
}  # fmt: skip
SERVICE = {
    "apiVersion": str, "kind": str, "metadata": {"name": str},
    "spec": {"clusterIP": str, "publishNotReadyAddresses": bool, "selector": {"job-name": str}},
}  # fmt: skip


@pytest.mark.exhaustive  # the parser comes with what makes the site
def test_the_manifest_is_one_and_its_parts_fit():
    import yaml

    service, job = yaml.safe_load_all((CLUSTER / "train.kubernetes.yaml").read_text())
    assert (shape(service), shape(job)) == (SERVICE, JOB)
    assert (service["apiVersion"], job["apiVersion"], job["kind"]) == ("v1", "batch/v1", "Job")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    assert pod["restartPolicy"] == "Never"  # which the policy for failures asks for
    assert pod["subdomain"] == service["metadata"]["name"] and service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"]["job-name"] == job["metadata"]["name"]
    [rule] = spec["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [1, 2]}
    assert [one["name"] for one in container["volumeMounts"]] == [one["name"] for one in pod["volumes"]]

    words = [word.replace("$(JOB_COMPLETION_INDEX)", "3") for word in container["command"] + container["args"]]
    command = parse_command(words[1:])
    place = find_place(command.coordinator, command.processes, command.process, {})
    assert place.processes == spec["completions"] and place.process == 3 and not place.is_local
    assert place.host == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert [port["containerPort"] for port in container["ports"]] == [place.port, place.port + 1]
