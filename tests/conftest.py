"""What every test can rely on: 8 CPU devices, whatever the machine.

JAX reads its environment once, at the first import, so all of it is set here, before any test imports JAX.
"""

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from extent import WHOLE

NUM_DEVICES = 8


def _configure_environment() -> None:
    if "jax" in sys.modules:
        raise RuntimeError("jax was imported before tests/conftest.py could ask for 8 CPU devices")
    os.environ.pop("COLUMNS", None)  # pytest-xdist tells its workers the width of the terminal; output here has no edge
    os.environ["JAX_PLATFORMS"] = os.environ.get("MESHAX_TEST_PLATFORM", "cpu")
    flags = [
        f"--xla_force_host_platform_device_count={NUM_DEVICES}",
        # On busy cores a processor may reach a collective late; the default of 40 seconds aborts the process.
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds=60",
        "--xla_cpu_collective_call_terminate_timeout_seconds=300",
    ]
    if "PYTEST_XDIST_WORKER" in os.environ:
        # The workers fill the cores already: a matrix product needs no threads of its own.
        flags.append("--xla_cpu_multi_thread_eigen=false")
        for library in ("OMP", "OPENBLAS", "MKL"):
            os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    # The last of two equal flags wins: 8 devices, whatever the caller's environment says.
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags]).strip()


def _take_ctrl_c() -> None:
    """A shell starts what runs in the background so that it ignores Ctrl-C; tests of it need to hear it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_configure_environment()
_take_ctrl_c()
pytest.register_assert_rewrite("messages")


def pytest_collection_modifyitems(config, items):
    """Leaves out what is exhaustive, unless the whole run or a test by its name is asked for."""
    if WHOLE or any("::" in argument for argument in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]


def pytest_terminal_summary(terminalreporter):
    """Says how many cases the layout harness checked, of which kinds, and whether that was all of them."""
    counts = Counter()
    for report in terminalreporter.stats.get("passed", []):
        kind = Path(report.nodeid.split("::")[0]).stem.removeprefix("test_").replace("_", " ")
        counts[kind] += sum(value for name, value in report.user_properties if name == "checked")
    if counts := +counts:
        extent = "every legal layout" if WHOLE else "a seeded sample of layouts; make test-all checks them all"
        terminalreporter.write_line(
            f"layout invariance: {counts.total():,} cases checked, forward and gradient ({extent})"
        )
        terminalreporter.write_line("  " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items())))
