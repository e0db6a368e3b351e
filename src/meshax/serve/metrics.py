"""What the server counts, as Prometheus reads it."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

_WAITS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
_TOKENS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Histogram:
    """How many of some numbers are below each of some bounds."""

    def __init__(self, bounds: tuple[float, ...]):
        self._bounds, self._counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    @property
    def count(self) -> int:
        """How many numbers there were."""
        return sum(self._counts)

    def add(self, number: float) -> None:
        """Takes a number in."""
        self._counts[bisect_left(self._bounds, number)] += 1
        self.sum += number

    def lines(self, name: str) -> Iterator[str]:
        """Yields its lines."""
        below = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            below += count
            yield f'{name}_bucket{{le="{bound}"}} {below}'
        yield f"{name}_sum {self.sum:.6f}"
        yield f"{name}_count {below}"


class Metrics:
    """Counts of what has happened, by all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[int] = Counter()
        self._tokens: Counter[str] = Counter()
        self._first, self._each, self._whole = Histogram(_WAITS), Histogram(_TOKENS), Histogram(_WAITS)

    def add_request(self, status: int) -> None:
        """Counts a request by the status of its answer."""
        with self._lock:
            self._requests[status] += 1

    def add_prompt(self, tokens: int) -> None:
        """Counts the tokens of a prompt that was read."""
        with self._lock:
            self._tokens["prompt"] += tokens

    def add_tokens(self, count: int, waited: float | None) -> None:
        """Counts tokens that were written, and for the first ones of a text how long they were waited for."""
        with self._lock:
            self._tokens["generated"] += count
            if waited is not None:
                self._first.add(waited)

    def add_text(self, tokens: int, in_slot: float, whole: float) -> None:
        """Counts a text that has ended: its tokens, the seconds in its slot, the seconds since it was asked for."""
        with self._lock:
            self._whole.add(whole)
            if tokens:
                self._each.add(in_slot / tokens)

    @property
    def mean_seconds(self) -> float:
        """How long a text has taken, on average."""
        with self._lock:
            return self._whole.sum / self._whole.count if self._whole.count else 0.0

    def text(self, **now: int) -> str:
        """Returns everything in Prometheus's format, with what is so now, such as the length of the queue."""
        with self._lock:
            lines = ["# TYPE meshax_requests_total counter"]
            lines += [
                f'meshax_requests_total{{status="{status}"}} {count}'
                for status, count in sorted(self._requests.items())
            ]
            for kind in ("prompt", "generated"):
                lines += [f"# TYPE meshax_{kind}_tokens_total counter"]
                lines += [f"meshax_{kind}_tokens_total {self._tokens[kind]}"]
            for name, value in now.items():
                lines += [f"# TYPE meshax_{name} gauge", f"meshax_{name} {value}"]
            for name, histogram in (
                ("time_to_first_token_seconds", self._first),
                ("seconds_per_token", self._each),
                ("text_seconds", self._whole),
            ):
                lines += [f"# TYPE meshax_{name} histogram", *histogram.lines(f"meshax_{name}")]
        return "\n".join(lines) + "\n"
