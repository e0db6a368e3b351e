"""Ctrl-C stops a run for certain, wherever it comes."""

import contextlib
import signal
import threading

import pytest

from meshax.train.interrupts import interruptible


def test_an_interrupt_that_gets_lost_is_raised_again():
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as check:
        check()
        with contextlib.suppress(KeyboardInterrupt):  # as a callback of JAX's does
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_thread_can_train_too():
    seen = []

    def work():
        with interruptible() as check:
            check()
            seen.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == ["done"]


def test_who_ignores_ctrl_c_goes_on_ignoring_it():
    """As a shell makes it for what runs in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible() as check:
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
            check()
    finally:
        signal.signal(signal.SIGINT, before)
