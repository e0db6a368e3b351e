"""Bytes, counts and seconds for reading."""


def show_bytes(count: float) -> str:
    """Returns a number of bytes for reading: `1.2 GB`."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def show_count(count: float) -> str:
    """Returns a large number with the prefix of its unit: `1.2 G`, to be followed by the unit."""
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} "


def show_seconds(seconds: float) -> str:
    """Returns a time for reading: `1.2 ms`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
