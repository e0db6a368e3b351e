"""`meshax launch`: what it is told, and what the processes are told."""

import pytest

from meshax.cli import launch, main
from meshax.cli.commands import parse_command
from meshax.cli.launch import Launch


def test_what_stands_after_the_dashes_is_the_command():
    command = parse_command(["launch", "-n", "4", "--max-restarts", "3", "--", "train", "--steps", "5", "--", "x"])
    assert isinstance(command, Launch) and (command.processes, command.max_restarts) == (4, 3)
    assert command.command == ("train", "--steps", "5", "--", "x")


def test_help_explains_with_an_example(capsys):
    assert main(["launch", "--help"]) == 0
    out, _ = capsys.readouterr()
    assert 'meshax launch -n 4 -- train --mesh "data:2 model:4" --out runs/four' in out and "--max-restarts" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "2"], "there is no command to launch.\n  fix: write it after --: meshax launch -n 4 -- train"),
        (["-n", "0", "--", "train"], "--processes is 0.\n  fix: give a number, 1 or more."),
        (["--max-restarts", "-1", "--", "train"], "--max-restarts is -1.\n  fix: give a number, 0 or more."),
    ],
)
def test_what_cannot_be_launched(arguments, words, capsys):
    assert main(["launch", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"meshax: {words}")


def test_each_has_a_gpu_of_its_own():
    environments = launch._environments(2, {"CUDA_VISIBLE_DEVICES": "3,5,7", "A": "b"})
    assert environments == [{"CUDA_VISIBLE_DEVICES": gpu, "A": "b"} for gpu in ("3", "5")]
    with pytest.raises(launch.UsageError, match="4 processes cannot have a GPU each: there are 3."):
        launch._environments(4, {"CUDA_VISIBLE_DEVICES": "3,5,7"})


def test_on_cpus_there_are_none():
    environment = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "3"}
    assert launch._environments(2, environment) == [environment] * 2


def test_processors_are_shared_equally(capsys, monkeypatch):
    monkeypatch.setenv("MESHAX_COORDINATOR", "127.0.0.1:9000")
    monkeypatch.setenv("MESHAX_PROCESSES", "3")
    monkeypatch.setenv("MESHAX_PROCESS", "1")
    assert main(["train", "--mesh", "data:2 model:4"]) == 2
    assert capsys.readouterr().err == (
        "meshax: 3 processes cannot share 8 processors equally.\n"
        "  fix: choose another number of processes or another mesh, or say how many each has: --local-devices.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--process", "1"], "--coordinator and --processes are missing."),
        (["--silence-limit", "0"], "silence is 0.0 seconds."),
        (["--distributed", *["--coordinator", "h:1", "--processes", "2", "--process", "0"]], "--distributed finds"),
        (["--local-devices", "-1"], "--local-devices is -1."),
    ],
)
def test_what_a_process_cannot_be_told(arguments, words, capsys):
    assert main(["train", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"meshax: {words}")
