"""`meshax segment`."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from .options import UsageError, usage
from .written import OnTrained


@dataclass(kw_only=True)
class Segment(OnTrained):
    """Labels every voxel of a volume with a trained model; the volume is split over the mesh as the layout says.

    meshax segment --run runs/unet-tiny volume.nii.gz --out labels.nii.gz

    meshax segment --run runs/unet-tiny scan.npy --out labels.npy --mesh "rows:2 cols:4" --layout "x:rows y:cols"
    """

    volume: Positional[
        Annotated[str, arg(metavar="FILE", help="The volume: .npy, .zarr, .nii or .nii.gz.", help_behavior_hint="")]
    ] = ""
    run_: Annotated[str, arg(name="run", metavar="DIR", help="The directory that meshax train wrote.")] = (
        "runs/unet-tiny"
    )
    out: Annotated[
        str, arg(metavar="FILE", help="Where the labels go: .npy, .nii or .nii.gz.", help_behavior_hint="")
    ] = ""

    def run(self) -> None:
        """Restores, reads, labels and writes."""
        if not self.volume or not self.out:
            missing = "--out" if self.volume else "the volume"
            raise UsageError(f"{missing} is missing.", fix="give both: meshax segment FILE --out FILE.")
        from ..data.volume_files import check_writable, open_volume, write_volume

        with usage():
            check_writable(self.out)
            image = open_volume(self.volume)
        with self.restored_run("volumes", "name the run of a model that segments.") as (run, model, _):
            import numpy as np

            from ..train.segmenting import segment

            with run.console.status("labelling the voxels"):
                low, high = run.config.data.window
                labels = segment(model, run.model, run.shapes["image"], image, run.mesh, run.layout, (low, high))
            write_volume(self.out, labels, like=image)
        counts = np.bincount(labels.ravel(), minlength=run.model.sizes()["classes"])
        shares = {f"class_{number}": int(count) for number, count in enumerate(counts)}
        words = ", ".join(f"{name.replace('_', ' ')} {count / labels.size:.2%}" for name, count in shares.items())
        self.report({"out": self.out, "voxels": labels.size, **shares}, f"{self.out}: {labels.size:,} voxels, {words}")
