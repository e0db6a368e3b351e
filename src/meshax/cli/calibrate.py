"""`meshax bench calibrate`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from .options import Reporting, UsageError, progress_console


@dataclass(kw_only=True)
class Calibrate(Reporting):
    """Measures what the processors of this machine can do, for predictions with --hardware this.

    Takes about a minute; leave the machine alone meanwhile. Example:

    meshax bench calibrate --devices 8
    """

    out: Annotated[
        str, arg(metavar="FILE", help="Where to write it.", help_behavior_hint="(default: where --hardware this looks)")
    ] = ""
    devices: Annotated[int, arg(metavar="N", help="On a CPU: how many virtual processors.")] = 8

    def run(self) -> None:
        """Measures, prints, writes."""
        import jax
        from rich.progress import Progress

        from ..bench.calibrate import Calibration, as_text
        from ..files import write_whole
        from ..plan.cost.hardware import calibrated_path

        if self.devices < 1:
            raise UsageError(f"there cannot be {self.devices} processors.", fix="--devices 8.")
        path = Path(self.out) if self.out else calibrated_path()
        if path is None:
            raise UsageError("there is no home to write into: HOME is not set.", fix="--out machine.json.")
        jax.config.update("jax_num_cpu_devices", self.devices)
        calibration = Calibration()
        with Progress(console=progress_console()) as progress:
            task = progress.add_task("measuring", total=calibration.count)
            for measurement in calibration.run():
                progress.update(task, advance=1, description=measurement.what)
        machine = calibration.hardware()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, machine.to_json())
        data = {
            "hardware": asdict(machine),
            "measurements": [asdict(m) for m in calibration.measured],
            "written": str(path),
        }
        self.report(data, f"{as_text(calibration.measured, machine)}written to {path}")
