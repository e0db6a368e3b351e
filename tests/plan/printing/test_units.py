import pytest

from meshax.plan.printing.units import show_bytes, show_count, show_seconds


@pytest.mark.parametrize(("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (2e12, "2 TB")])
def test_bytes_for_reading(count, text):
    assert show_bytes(count) == text


@pytest.mark.parametrize(("count", "text"), [(5, "5 "), (1234, "1.23 k"), (2.5e9, "2.5 G"), (7e15, "7 P")])
def test_counts_for_reading(count, text):
    assert show_count(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(2, "2 s"), (0.0123, "12.3 ms"), (5e-6, "5 us"), (3e-9, "3 ns")])
def test_seconds_for_reading(seconds, text):
    assert show_seconds(seconds) == text
