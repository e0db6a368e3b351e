"""What is counted, as Prometheus reads it."""

from meshax.serve.metrics import Histogram, Metrics


def test_a_histogram():
    histogram = Histogram((0.1, 1.0))
    for number in (0.05, 0.1, 0.5, 7.0):
        histogram.add(number)
    assert list(histogram.lines("x")) == [
        'x_bucket{le="0.1"} 2', 'x_bucket{le="1.0"} 3', 'x_bucket{le="+Inf"} 4', "x_sum 7.650000", "x_count 4",
    ]  # fmt: skip


def test_everything_is_told():
    metrics = Metrics()
    assert metrics.mean_seconds == 0
    for status in (200, 429, 200):
        metrics.add_request(status)
    metrics.add_prompt(7)
    metrics.add_tokens(4, 0.3)
    metrics.add_tokens(5, None)
    metrics.add_text(9, 0.9, 1.5)
    metrics.add_text(0, 0.0, 0.5)
    assert metrics.mean_seconds == 1.0
    lines = metrics.text(queue_length=3, slots_busy=2).splitlines()
    for line in (
        'meshax_requests_total{status="200"} 2',
        'meshax_requests_total{status="429"} 1',
        "meshax_prompt_tokens_total 7",
        "meshax_generated_tokens_total 9",
        "# TYPE meshax_queue_length gauge",
        "meshax_queue_length 3",
        "meshax_slots_busy 2",
        'meshax_time_to_first_token_seconds_bucket{le="0.25"} 0',
        'meshax_time_to_first_token_seconds_bucket{le="0.5"} 1',
        "meshax_seconds_per_token_sum 0.100000",
        "meshax_seconds_per_token_count 1",
        "meshax_text_seconds_count 2",
    ):
        assert line in lines
