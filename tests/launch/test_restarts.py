"""When to start again, how soon, and when there is no hope."""

from meshax.launch.local import Outcome
from meshax.launch.restarts import Restarts

KILLED = 137


def run(outcomes, processes=4, **options):
    """Returns the status, the numbers of processes started, the pauses, and what was said."""
    outcomes, started, pauses, said = iter(outcomes), [], [], []
    restarts = Restarts(**options, say=said.append, sleep=pauses.append)
    status = restarts.run(lambda number: started.append(number) or next(outcomes), processes)
    return status, started, pauses, said


def test_what_is_done_is_done():
    assert run([Outcome(0)], most=5) == (0, [4], [], [])


def test_without_restarts_a_failure_is_said_and_given_back():
    assert run([Outcome(1, 2, ("words",), 7)]) == (
        1, [4], [], ["process 2 failed with exit status 1 in step 7, and said last:\n  words"],
    )  # fmt: skip


def test_pauses_grow_and_what_was_lost_is_said():
    outcomes = [Outcome(KILLED, 1, (), step) for step in range(1, 8)] + [Outcome(0, begun_after=1.0)]
    status, started, pauses, said = run(outcomes, most=10)
    assert status == 0 and started == [4] * 8 and pauses == [1, 2, 4, 8, 16, 32, 60]
    assert said[1] == "restart 1 of 10 in 1 seconds, from the last checkpoint"
    assert said[-1].startswith("restarts: 7; ") and said[-1].endswith(" seconds went by until training went on")


def test_there_are_no_more_restarts_than_allowed():
    status, started, _, _ = run([Outcome(KILLED, 1, (), step) for step in range(1, 9)], most=2)
    assert status == KILLED and len(started) == 3


def test_a_step_that_fails_twice_is_given_up():
    status, started, _, said = run([Outcome(1, 0, (), 5), Outcome(1, 0, (), 5)], most=10)
    assert status == 1 and len(started) == 2
    assert "step 5 has failed twice: no restart will help" in said


def test_starts_that_fail_are_given_up():
    status, started, _, said = run([Outcome(1)] * 3, most=10)
    assert status == 1 and len(started) == 3
    assert "3 starts have failed before a step: no restart will help" in said


def test_what_the_user_ended_stays_ended():
    for status in (2, 130, 143):
        assert run([Outcome(status, 0, (), 5)], most=10)[:2] == (status, [4])
    assert run([Outcome(143, 0, ("words",), 5)], most=10)[3] == ["interrupted"]


def test_one_process_less_after_a_killed_one():
    outcomes = [Outcome(KILLED, 1, (), 1), Outcome(1, 1, (), 2), Outcome(KILLED, 1, (), 3), Outcome(KILLED, 1, (), 4)]
    _, started, _, said = run([*outcomes, Outcome(0)], most=10, fewest_processes=2)
    assert started == [4, 3, 3, 2, 2] and said[1].endswith("from the last checkpoint, with 3 processes")
