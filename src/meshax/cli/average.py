"""`meshax average`."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

from .options import Reporting, progress_console


@dataclass(kw_only=True)
class Average(Reporting):
    """Makes a run of the mean of the last checkpoints of another; it often predicts better than each of them.

    The new run is evaluated, writes and translates like any other. No accelerator is used, and little memory.

    meshax average --run runs/tiny --last 2 --out runs/mean
    """

    run_: Annotated[str, arg(name="run", metavar="DIR", help="The directory that meshax train wrote.")] = "runs/tiny"
    last: Annotated[int, arg(metavar="N", help="How many checkpoints, the last ones; see --keep-last of train.")] = 5
    out: Annotated[
        str,
        arg(metavar="DIR", help="The directory of the new run.", help_behavior_hint="(default: the run's, and -mean)"),
    ] = ""

    def run(self) -> None:
        """Averages."""
        import jax

        jax.config.update("jax_platforms", "cpu")
        from ..train.averaging import average_checkpoints

        out = self.out or f"{self.run_.rstrip('/')}-mean"
        steps = average_checkpoints(self.run_, self.last, out, progress_console())
        text = f"the mean of steps {', '.join(map(str, steps))} in {out}\nnext: meshax eval --run {out}"
        self.report({"run": out, "steps": steps}, text)
