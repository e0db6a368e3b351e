"""Programs in several real processes: JAX's runtime over loopback, with Gloo between the processes."""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Gloo's threads write into each other's lines, and into ours: what Python does not print goes with the errors. An error
# leaves at once: returning to JAX's exit barrier would wait for processes that wait for this one.
_START = """
import os, sys, traceback
sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
import meshax  # before JAX starts: it asks for enough threads
import jax
address, processes, process, devices, program, *sys.argv[1:] = sys.argv[1:]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", int(devices))
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, int(processes), int(process), coordinator_bind_address=address)
try:
    exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
except BaseException:
    traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
"""


def free_port():
    """Returns a port that nobody listens to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**changes):
    """Returns the environment of a process with devices of its own number."""
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
    inherited = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])}
    return {**inherited, "XLA_FLAGS": flags, **changes}


def run_processes(program, processes, *words, devices=8, timeout=150):
    """Runs a program in several processes that share 8 devices; returns what each has printed, line by line.

    Args:
        program: its text.
        processes: how many.
        words: what it finds in `sys.argv[1:]`.
        devices: in all processes together.
        timeout: seconds after which all are ended.
    """
    address = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        started, printed = [], []
        for process in range(processes):
            numbers = [processes, process, devices // processes]
            command = [sys.executable, "-c", _START, address, *map(str, numbers), program, *map(str, words)]
            out, err = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))  # a pipe would fill up
            started.append(stack.enter_context(subprocess.Popen(command, env=environment(), stdout=out, stderr=err)))
            stack.callback(started[-1].kill)
            printed.append((out, err))
        _wait(started, timeout)
        results = [[file.seek(0) or file.read() for file in files] for files in printed]
    failed = [(i, results[i][1]) for i, process in enumerate(started) if process.returncode]
    assert not failed, "\n".join(f"process {i}:\n{err}" for i, err in failed)
    return [out.splitlines() for out, _ in results]


def _wait(started, timeout):
    """Waits for all, but not for those that wait for one that has failed."""
    end = time.monotonic() + timeout
    while any(process.poll() is None for process in started) and time.monotonic() < end:
        if any(process.returncode for process in started):
            end = min(end, time.monotonic() + 5)
        time.sleep(0.05)
    for process in started:
        process.kill()
        process.wait()
