"""Processes that know each other: here threads, each with a connection of its own to a hub."""

import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent

import pytest

from meshax import interrupts
from meshax.launch.channel import LONGEST, Channel, Gone, connect, listen
from meshax.launch.hub import Hub
from meshax.launch.peers import Connected, Peers
from meshax.launch.place import ANOTHER_FAILED, HUNG, Limits, ProcessError

QUICK = Limits(arrival=3.0, silence=2.0)


class Group:
    """A hub, and as many peers as are asked for."""

    every = []

    def __init__(self, number, limits=QUICK, come=None, secret="word"):
        self.every.append(self)
        self.joined = []
        self.listener = listen("127.0.0.1")
        self.port = self.listener.getsockname()[1]
        self.hub = Hub(self.listener, number, limits, "word")
        self.limits, self.number, self.secret = limits, number, secret
        self.pool = ThreadPoolExecutor(16)
        self.coming = [self.pool.submit(self.join, process) for process in (range(number) if come is None else come)]

    def join(self, process, processes=None):
        channel = connect("127.0.0.1", self.port, 2.0)
        peer = Connected.__new__(Connected)
        self.joined.append(peer)
        peer.__init__(channel, process, processes or self.number, self.limits, self.secret)
        return peer

    @property
    def peers(self):
        return [one.result(10) for one in self.coming]

    def each(self, work):
        """Calls a function with every peer at once."""
        return [one.result(20) for one in [self.pool.submit(work, peer) for peer in self.peers]]

    def close(self):
        """Lets the threads end, and nobody notice."""
        self.hub._is_over = True
        for peer in self.joined:
            peer._is_done = peer._is_leaving = True
        time.sleep(0.4)
        for peer in self.joined:
            peer._channel.close()
        self.pool.shutdown()


@pytest.fixture(autouse=True)
def ended(monkeypatch):
    """What processes would end with, in the order in which they do."""
    seen = []
    monkeypatch.setattr(interrupts, "leave", lambda status, words: seen.append((status, words)))
    yield seen
    while Group.every:
        Group.every.pop().close()


def wait_for(condition, seconds=10.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_a_process_alone_agrees_with_itself():
    alone = Peers()
    alone.agree({"seed": 1})
    with alone.first("x") as is_first:
        assert is_first
    assert alone.is_first and alone.stopped_by() == 0 and alone.skew() == {} and alone.gather("y", 3) == [(3, [0])]


def test_values_are_gathered_by_who_has_them():
    groups = Group(3).each(lambda peer: peer.gather("parity", {"odd": peer.process % 2}))
    assert groups == [[({"odd": 0}, [0, 2]), ({"odd": 1}, [1])]] * 3


def test_nobody_passes_before_all_are_there():
    passed = []

    def work(peer):
        time.sleep(0.3 * peer.process)
        passed.append("before")
        peer.gather("here")
        passed.append("after")

    Group(3).each(work)
    assert passed == ["before"] * 3 + ["after"] * 3


def test_the_first_does_it_then_the_others():
    order = []

    def work(peer):
        with peer.first("writing") as is_first:
            time.sleep(0.3 if is_first else 0)
            order.append(is_first)

    Group(3).each(work)
    assert order == [True, False, False]


def test_what_differs_is_named_everywhere(ended):
    def work(peer):
        with pytest.raises(ProcessError) as error:
            peer.agree({"seed": 4 if peer.process == 1 else 3, "steps": 10, **({"jax": "0.1"} if peer.process else {})})
        peer.fail("it is known")
        return error.value

    for error in Group(3).each(work):
        assert (
            str(error)
            == dedent("""
            the processes do not agree.
              values: jax: nothing on process 0; '0.1' on processes 1, 2
                      seed: 3 on processes 0, 2; 4 on process 1
              rule: all processes of a run have the same options, versions, mesh, layout, data and program.
              fix: start all of them with the same command, in the same environment.
            """).strip()
        )
    time.sleep(0.3)
    assert not ended


def test_who_does_not_come_is_named():
    group = Group(4, come=[0, 2], limits=Limits(arrival=1.0))
    for one in group.coming:
        with pytest.raises(ProcessError) as error:
            one.result(10)
        assert (
            str(error.value)
            == dedent("""
            the processes cannot begin together.
              values: processes 1, 3 of 4 did not arrive within 1 seconds
              rule: all processes of a run are there before it begins.
              fix: see what became of that process, and start all again.
            """).strip()
        )


@pytest.mark.parametrize(
    ("process", "processes", "words"),
    [(0, 2, "has the number of process 0"), (1, 3, "was told of 3 processes, process 0 of 2")],
)
def test_who_has_no_place_ends_all(process, processes, words):
    group = Group(2, come=[0])
    wait_for(lambda: group.hub._members)
    for one in (group.pool.submit(group.join, process, processes), *group.coming):
        with pytest.raises(ProcessError, match=words):
            one.result(10)


def test_strangers_are_not_listened_to(ended):
    group = Group(2)
    peers = group.peers
    for first in (
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"kind": "failed", "why": "a joke"}\n',
        b"[" * 10_000 + b"\n",
        b"\xff\n",
    ):
        with socket.create_connection(("127.0.0.1", group.port)) as stranger:
            stranger.sendall(first)
            assert stranger.recv(10) == b""
    hello = {"kind": "hello", "process": 1, "processes": 2, "pid": 1, "host": "x", "secret": "another"}
    with socket.create_connection(("127.0.0.1", group.port)) as stranger:
        stranger.sendall(json.dumps(hello).encode() + b"\n")
        assert stranger.recv(10) == b""
    assert group.each(lambda peer: len(peer.gather("still"))) == [1, 1] and len(peers) == 2 and not ended


def test_a_message_has_a_limit():
    one, other = socket.socketpair()
    sending = threading.Thread(target=one.sendall, args=(b"x" * (LONGEST + 1),))
    sending.start()
    channel = Channel(other)
    with pytest.raises(Gone, match="too long"):
        while True:
            assert not list(channel.arrived())
    sending.join()
    channel.close()
    one.close()


def test_an_error_in_one_ends_the_others(ended):
    group = Group(3)
    peers = group.peers
    begin = time.monotonic()
    peers[1].fail("ValueError: no luck")
    wait_for(lambda: len(ended) == 2)
    assert time.monotonic() - begin < 1
    assert {status for status, _ in ended} == {1}
    name = r"process 1 \(pid \d+ on .+\) failed: ValueError: no luck; process [02] ends too"
    assert all(re.fullmatch(name, words) for _, words in ended)


@pytest.mark.parametrize(("status", "others"), [(1, ANOTHER_FAILED), (143, 143)])
def test_a_launcher_tells_who_failed_from_who_followed(ended, status, others):
    peers = Group(2).peers
    peers[0].is_launched = True
    peers[1].fail("no luck", status)
    wait_for(lambda: ended)
    assert ended[0][0] == others


def test_a_killed_process_is_noticed_at_once(ended):
    peers = Group(3).peers
    peers[2]._is_leaving = True  # it is dead: it does not notice
    peers[2]._channel.socket.shutdown(socket.SHUT_RDWR)
    wait_for(lambda: len(ended) == 2, 5.0)
    assert {status for status, _ in ended} == {ANOTHER_FAILED}
    assert all("process 2 (pid" in words and "is gone: it was killed, or crashed" in words for _, words in ended)


def test_a_silent_process_is_noticed_within_the_limit(ended):
    peers = Group(3).peers
    begin = time.monotonic()
    peers[2]._is_done = True  # it beats no more
    wait_for(lambda: len(ended) == 3)
    assert 1.5 < time.monotonic() - begin < 5
    assert all("process 2 (pid" in words and "has said nothing for 2 seconds" in words for _, words in ended)


def test_the_silence_of_the_first_is_noticed_by_the_others(ended):
    group = Group(2)
    assert len(group.peers) == 2
    group.hub._look = lambda: time.sleep(4)  # its process is stopped
    wait_for(lambda: len(ended) >= 1, 6.0)
    assert all("process 0 (pid" in words and "has said nothing for 2 seconds" in words for _, words in ended)


def test_a_step_that_hangs_is_named_and_stacks_are_shown(ended, capfd):
    group = Group(3, Limits(arrival=3.0, step=1.5))
    peers = group.peers
    for _ in range(3):
        group.each(lambda peer: peer.stopped_by())
    for peer in peers[:2]:
        peer.stopped_by()  # process 2 does not come so far
    wait_for(lambda: len(ended) == 3)
    assert {status for status, _ in ended} == {HUNG}
    assert all("no step ended within 1.5 seconds: process 2 (pid" in words for _, words in ended)
    err = capfd.readouterr().err
    assert all(f"meshax: where process {process} is:\n" in err for process in range(3)) and "test_peers.py" in err


def test_what_is_said_to_take_its_time_may(ended):
    group = Group(2, Limits(arrival=3.0, step=0.5))
    group.each(lambda peer: peer.stopped_by())

    def save(peer):
        with peer.during("saving"):
            time.sleep(1.5 if peer.process else 0)
        return peer.stopped_by()

    assert group.each(save) == [0, 0] and not ended


def test_all_stop_at_the_same_place_whoever_is_asked():
    group = Group(3)

    def work(peer):
        for number in range(1, 1000):
            if peer.process == 1 and number == 20:
                peer.ask_to_stop(15)
            time.sleep(0.001 * (1 + peer.process))
            if number % 10 == 0:
                peer.gather(f"collective {number}")  # so nobody is far ahead
            if by := peer.stopped_by():
                return by, number
        return None

    results = group.each(work)
    assert len(set(results)) == 1 and results[0][0] == 15 and 20 <= results[0][1] <= 40


def test_two_signals_at_once_are_one_stop():
    group = Group(2)

    def work(peer):
        peer.stopped_by()
        peer.ask_to_stop(2)
        for number in range(1000):
            time.sleep(0.005)
            if by := peer.stopped_by():
                return by, number
        return None

    results = group.each(work)
    assert results[0] == results[1] and results[0] is not None


def test_the_last_to_begin_a_step_is_named():
    group = Group(3, Limits(arrival=3.0, silence=2.0))
    wait_for(lambda: all(peer._best_trip < 1 for peer in group.peers))

    def work(peer):
        time.sleep(0.4 if peer.process == 1 else 0.0)
        peer.began(1)

    group.each(work)
    wait_for(lambda: all(peer.skew() for peer in group.peers))
    for peer in group.peers:
        assert peer.skew()["slowest_process"] == 1 and 0.3 < peer.skew()["skew_seconds"] < 1.5


def test_when_all_is_done_whoever_leaves_may(ended):
    group = Group(3)
    group.each(lambda peer: peer.done())
    for peer in group.peers:
        assert peer.is_over
        peer._channel.socket.shutdown(socket.SHUT_RDWR)
    time.sleep(0.5)
    assert not ended
