"""Which process this is: from options, from the environment, from neither; and what is wrong with them."""

from textwrap import dedent

import pytest

from meshax.launch.place import COORDINATOR, PROCESS, PROCESSES, Limits, Place, ProcessError, find_place


def test_options_name_it():
    assert find_place("10.0.0.1:9000", 4, 3, {}) == Place(3, 4, "10.0.0.1", 9000)
    assert find_place("[::1]:9000", 1, 0, {}) == Place(0, 1, "::1", 9000)


def test_a_launcher_names_it_and_options_win():
    environment = {COORDINATOR: "127.0.0.1:9000", PROCESSES: "2", PROCESS: "1"}
    assert find_place(environment=environment) == Place(1, 2, "127.0.0.1", 9000)
    assert find_place("host:80", 3, 2, environment) == Place(2, 3, "host", 80)


def test_without_both_it_is_alone():
    assert find_place(environment={}) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_what_stays_on_this_machine(host):
    assert Place(0, 2, host, 9000).is_local


@pytest.mark.parametrize("host", ["10.0.0.1", "0.0.0.0", "node7", "2001:db8::1"])
def test_what_does_not(host):
    assert not Place(0, 2, host, 9000).is_local


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("10.0.0.1:9000", 4), "--process is missing."),
        (("", 4), "--coordinator and --process are missing."),
        (("10.0.0.1", 4, 0), "'10.0.0.1' is no address."),
        (("10.0.0.1:x", 4, 0), "'10.0.0.1:x' is no address."),
        (("h:65535", 4, 0), "'h:65535' is no address."),
        (("h:9000", 4, 4), "there is no process 4 of 4."),
        (("h:9000", -1, 0), "there is no process 0 of -1."),
    ],
)
def test_what_cannot_be(arguments, words):
    with pytest.raises(ProcessError) as error:
        find_place(*arguments, environment={})
    assert str(error.value).startswith(words) and "  fix: " in str(error.value)


def test_half_an_environment():
    with pytest.raises(ProcessError) as error:
        find_place(environment={COORDINATOR: "127.0.0.1:9000", PROCESSES: "2"})
    assert (
        str(error.value)
        == dedent("""
        MESHAX_COORDINATOR is set, and MESHAX_PROCESSES or MESHAX_PROCESS is not a number.
          fix: set all three, or none of them.
        """).strip()
    )


def test_limits_that_nobody_could_keep():
    Limits().check()
    with pytest.raises(ProcessError) as error:
        Limits(silence=0.5).check()
    assert (
        str(error.value)
        == dedent("""
        silence is 0.5 seconds.
          fix: give a number of seconds, 2 or more.
        """).strip()
    )
