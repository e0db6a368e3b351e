"""What may happen to a run on many processes, at random instants: `make chaos`, which takes most of an hour.

MESHAX_CHAOS_SEED chooses the instants, MESHAX_KILLS how many there are.
"""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from launched import arguments, final_state, last_step, launched, rows
from processes import environment, free_port
from runs import write_text

pytestmark = pytest.mark.chaos

SEED = int(os.environ.get("MESHAX_CHAOS_SEED", "1"))
KILLS = int(os.environ.get("MESHAX_KILLS", "50"))
STEPS = 2000
RARELY = ["--save-every", "10", "--eval-every", "500", "--mesh", "data:2 model:1"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text"))


def whole_run(text, out, steps=STEPS, processes=2, others=RARELY):
    with launched(processes, arguments(text, out, steps, *others)) as run:
        status, _ = run.finish(900)
        assert status == 0, run.said
    return final_state(out)


def kill_once(text, run, number, draw):
    """Starts a run, kills one of its processes or the launcher at a random instant, and returns what happened.

    Every fifth time it is while a checkpoint is being written, otherwise half of the time before the first step.
    """
    before = last_step(run)
    with launched(2, arguments(text, run, STEPS, *RARELY)) as processes:
        began = time.monotonic()
        if number % 5 == 0:
            where = "inside a checkpoint"
            left = set(run.glob("checkpoints/*-step-*.tmp"))  # by the kill before
            processes.wait_until(lambda: set(run.glob("checkpoints/*-step-*.tmp")) - left)
        elif number % 2:
            where = "while it starts"
            instant = draw.uniform(0, 12)
            processes.wait_until(lambda: time.monotonic() - began > instant)
        else:
            where = "in training"
            processes.wait_until(lambda: last_step(run) > before or time.monotonic() - began > 120)
            time.sleep(draw.uniform(0, 2))
        victim = draw.choice([0, 1, "launcher"])
        children = processes.children()
        if victim == "launcher" or len(children) <= victim:
            victim, pid = "launcher", processes.popen.pid
        else:
            pid = children[victim]
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            victim = "nobody: it had ended"
        killed = time.monotonic()
        status, _ = processes.finish()
        wait_gone(children)
        ended = time.monotonic() - killed
    assert ended < 30, processes.said
    step, data, _ = final_state(run) if list(run.glob("checkpoints/*-step-*[0-9]")) else (0, None, {})
    if data is not None:  # as many batches read as steps made: none twice, none left out
        assert data["position"] == {"next_index": step}
    print(
        f"kill {number}: {where}, {victim}, at step {last_step(run)}, saved {step}, gone after {ended:.2f} s",
        flush=True,
    )
    return status


def wait_gone(pids, seconds=30):
    limit = time.monotonic() + seconds
    while any(os.path.exists(f"/proc/{pid}") and state(pid) != "Z" for pid in pids):
        assert time.monotonic() < limit, f"{pids} are still there"
        time.sleep(0.02)


def state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def test_kills_at_random_instants_change_nothing(tmp_path, text):
    draw, run = random.Random(SEED), tmp_path / "run"
    for number in range(KILLS):
        kill_once(text, run, number, draw)
    assert whole_run(text, run) == whole_run(text, tmp_path / "whole")
    assert [row["step"] for row in rows(run) if "loss" in row] == list(range(1, STEPS + 1))


PLACES = [
    (2, "data:2 model:1", "data"),
    (1, "data:2 model:2", "data+model"),
    (4, "data:4 model:1", "fsdp"),
    (2, "data:1 model:4", "model"),
    (3, "data:3 model:1", "fsdp"),
    (4, "data:2 model:2", "data+model"),
]


def test_other_processes_and_layouts_at_each_restart(tmp_path, text):
    """Fewer and more processes, meshes that the batch does not divide by: the same batches, the same losses."""
    run, steps = tmp_path / "run", 10 * len(PLACES)
    for number, (processes, mesh, layout) in enumerate(PLACES):
        command = arguments(text, run, steps, "--mesh", mesh, "--layout", layout)
        with launched(processes, command) as one:
            if number < len(PLACES) - 1:
                assert one.wait_until(lambda number=number: last_step(run) >= 10 * (number + 1)), one.said
                one.popen.send_signal(signal.SIGTERM)
                assert one.finish()[0] == 143, one.said
            else:
                assert one.finish()[0] == 0, one.said
    whole_run(text, tmp_path / "whole", steps, others=["--mesh", "data:2 model:1", "--layout", "data"])
    here, there = ([row["loss"] for row in rows(one) if "loss" in row] for one in (run, tmp_path / "whole"))
    assert len(here) == len(there) == steps
    assert here == pytest.approx(there, rel=1e-5)


@pytest.mark.parametrize("layout", ["data", "model", "data+model", "fsdp"])
def test_any_number_of_processes_gives_the_same_bits(tmp_path, text, layout):
    states = {}
    for processes in (1, 2, 4):
        out = tmp_path / str(processes)
        others = ["--mesh", "data:2 model:4", "--layout", layout, "--model.heads", "8"]
        states[processes] = whole_run(text, out, 8, processes, others)
    assert states[1] == states[2] == states[4]


def test_a_process_that_is_stopped_for_a_while_goes_on(tmp_path, text):
    run = tmp_path / "run"
    with launched(2, arguments(text, run, 300, *RARELY)) as processes:
        assert processes.wait_until(lambda: last_step(run) > 20), processes.said
        for pid in processes.children():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(6)
            os.kill(pid, signal.SIGCONT)
        assert processes.finish()[0] == 0, processes.said


def test_a_process_that_stays_stopped_ends_all_in_time(tmp_path, text):
    run = tmp_path / "run"
    with launched(2, arguments(text, run, 100_000, *RARELY, "--silence-limit", "5")) as processes:
        assert processes.wait_until(lambda: last_step(run) > 20), processes.said
        os.kill(processes.children()[1], signal.SIGSTOP)
        stopped = time.monotonic()
        assert processes.finish()[0] in (69, 137, 143)
    assert time.monotonic() - stopped < 30 and "has said nothing for 5 seconds" in processes.said


def damage(path, how):
    data = path.read_bytes()
    if how == "removed":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    else:
        place = len(data) // 2
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])


@pytest.mark.parametrize("how", ["removed", "truncated", "flipped"])
def test_damage_is_named_by_all_and_nothing_is_trained(tmp_path, text, how):
    run = tmp_path / "run"
    whole_run(text, run, 8)
    newest = max(run.glob("checkpoints/*-step-8"))
    victim = random.Random(SEED).choice(sorted(path for path in newest.rglob("*") if path.is_file()))
    damage(victim, how)
    with launched(2, arguments(text, run, 16, *RARELY)) as processes:
        status, _ = processes.finish()
    assert status == 1 and "step 8 is damaged" in processes.said, processes.said
    assert victim.name in processes.said and last_step(run) == 8


def test_processes_with_other_options_stop_and_say_which(tmp_path, text):
    place = f"--coordinator 127.0.0.1:{free_port()} --processes 2".split()
    command = [sys.executable, "-m", "meshax", *arguments(text, tmp_path / "run", 8, *RARELY), *place]
    begin = time.monotonic()
    started = [
        subprocess.Popen(
            [*command, "--process", str(process), "--seed", str(process)],
            env=environment(JAX_PLATFORMS="cpu"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for process in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [1, 1] and time.monotonic() - begin < 60
    assert said[0] == said[1] and "values: seed: 0 on process 0; 1 on process 1\n" in said[0]
    assert not (tmp_path / "run").exists()


def test_eight_processes_on_two_cores_start_twenty_times(capfd):
    from meshax.launch.local import Processes

    script = (
        "import os, meshax as mx, jax\n"
        "from meshax.launch.joining import join\n"
        "from meshax.launch.place import Limits, find_place\n"
        "from meshax.launch.warming import warm_groups\n"
        "jax.config.update('jax_num_cpu_devices', 1)\n"
        "peers = join(find_place(), Limits(), {})\n"
        "peers.gather('here')\n"
        "warm_groups(mx.Mesh('data:2 model:4'))\n"
        "peers.done()\n"
    )
    for _ in range(20):
        begin = time.monotonic()
        outcome = Processes([sys.executable, "-c", script], [environment(JAX_PLATFORMS="cpu")] * 8).wait()
        assert outcome.status == 0, capfd.readouterr().err
        with capfd.disabled():
            print(f"8 processes: {time.monotonic() - begin:.1f} s", flush=True)


def test_a_launcher_restarts_until_it_is_done(tmp_path, text):
    """A killed process, a stopped one; what was lost is said."""
    run = tmp_path / "run"
    options = ["--max-restarts", "5"]
    with launched(2, arguments(text, run, 400, *RARELY, "--silence-limit", "5"), options) as processes:
        for number, after in ((signal.SIGKILL, 20), (signal.SIGSTOP, 120)):
            assert processes.wait_until(lambda after=after: last_step(run) > after), processes.said
            os.kill(processes.children()[1], number)
        assert processes.finish()[0] == 0, processes.said
    assert "meshax: restarts: 2; " in processes.said
    print([line for line in processes.said.splitlines() if "restarts" in line])
