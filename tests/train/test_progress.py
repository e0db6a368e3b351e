"""Off a terminal a plain line every few steps; on one a line that keeps up."""

import io
import re

from rich.console import Console

from meshax.train.progress import Display
from meshax.train.watch import Reading

READING = Reading(10, 6.4123, 5e-4, 1.234, 6875.4, 0.1524, 1_210_000_000, 151.4)


def shown(console_options, *readings, steps=600):
    file = io.StringIO()
    console = Console(file=file, **console_options)
    display = Display(console, steps, 0, "token", lambda loss: {"perplexity": 2.0**loss, "other": 1.0})
    with display.running():
        for reading in readings:
            display.update(reading)
        display.say("step 10: held-out loss 6.000")
    return file.getvalue()


def test_off_a_terminal_each_reading_is_one_line_however_narrow():
    unknown = Reading(600, float("nan"), 1e-30, 1e30, 12.0, 0.0, 0, 0.0)
    assert shown(dict(width=40), READING, unknown) == (
        "step  10/600  loss 6.412  perplexity 85.2  rate 5.00e-04  norm 1.23  6,875 tokens/s  utilization 15.2%  "
        "memory 1.21 GB  left 0:02:31\n"
        "step 600/600  loss nan  perplexity nan  rate 1.00e-30  norm 1e+30  12 tokens/s  left 0:00:00\n"
        "step 10: held-out loss 6.000\n"
    )


def test_on_a_terminal_one_line_keeps_up():
    options = dict(force_terminal=True, color_system=None, legacy_windows=False)
    for width, words in {
        80: "loss 6.412  6,875 tokens/s",
        140: "loss 6.412  perplexity 85.2  6,875 tokens/s  util",
    }.items():
        text = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", shown(options | {"width": width}, READING))
        assert words in text and "10/600" in text and "rate 5" not in text
        assert "step 10: held-out loss 6.000" in text
