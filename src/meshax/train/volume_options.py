"""What a run is told of its volumes: plain values, and what is wrong with them."""

from dataclasses import dataclass

from ..errors import ArgumentError, did_you_mean

CHANGES = ("flips", "rotations", "intensity", "noise", "crops")


@dataclass(frozen=True)
class VolumeFiles:
    """Other volumes to evaluate on."""

    # to segment: files or globs, .npy, .zarr, .nii or .nii.gz; to tell images apart: one .npy, [image, x, y, channel]
    images: tuple[str, ...] = ()
    # the classes of their voxels: sorted by name, the first are those of the first image; of images: one .npy, [image]
    labels: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises if images have no labels."""
        self._check_both("images", "labels")

    def _check_both(self, *names: str) -> None:
        one, other = sorted(names, key=lambda name: not getattr(self, name))
        if bool(getattr(self, one)) != bool(getattr(self, other)):
            raise ArgumentError(f"there is data.{one}, and no data.{other}.", fix=f"give data.{other}= too.")


@dataclass(frozen=True)
class VolumeOptions(VolumeFiles):
    """The volumes to learn from."""

    validation_images: tuple[str, ...] = ()  # to segment: files to evaluate on; none: a tenth of the images
    validation_labels: tuple[str, ...] = ()  # the classes of their voxels
    # the intensities that become -1 and 1, where it matters: of CT, soft tissue in Hounsfield units
    window: tuple[float, ...] = (-160.0, 240.0)
    # what is changed at random in volumes: flips, rotations, intensity, noise, crops, or nothing: none. Flips and
    # rotations are for what has no sides: a liver is on the right
    augment: tuple[str, ...] = ("intensity", "noise", "crops")
    cases: int = 0  # without images: how many to make by rules; 0: 400 volumes, or 8,000 images

    def check(self) -> None:
        """Raises if these cannot be volumes."""
        super().check()
        self._check_both("validation_images", "validation_labels")
        for word in self.augment if self.augment != ("none",) else ():
            if word not in CHANGES:
                raise ArgumentError(f"data.augment has {word!r}.", fix=did_you_mean(word, (*CHANGES, "none")))
        if len(self.window) != 2 or not self.window[0] < self.window[1]:
            raise ArgumentError(
                f"data.window is {' '.join(f'{number:g}' for number in self.window)}.",
                fix="give two intensities, the lower one first.",
            )
        if self.cases < 0:
            raise ArgumentError(f"data.cases is {self.cases}.", fix="give a number, 1 or more.")
