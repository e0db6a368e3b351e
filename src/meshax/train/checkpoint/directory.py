"""The checkpoints of a run, in one directory.

The directory holds checkpoints, each a directory of its own whose name tells the order of saving: `000004-step-2000`. A
name that ends in `.tmp` is not a checkpoint (yet, or any more). Saving copies what this process holds and returns; a
thread writes it. Restoring hashes every file first, and then reads what the new mesh and layout ask for.
"""

import atexit
import contextlib
import math
import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
from jax.experimental import multihost_utils

from ...errors import CheckpointError, shortened
from ...files import Held, Lock
from ...layout import Layout, RulesLike, Setting
from ...mesh import Mesh
from ...program import put
from .arrays import Reader
from .copies import Copies
from .failures import Damaged, held_by, not_saved, of_another_version, taken_over
from .manifest import Damage, Manifest, OtherVersion, check_json, meshax_version, read_manifest
from .stacks import sources_of
from .trees import dtypes_to_read, entry_of, find_differences, leaves_of, prepare_tree, read_tree, snapshot_tree
from .verification import is_whole, looks_whole, verify
from .writing import ARRAYS, TEMPORARY, Saving

Step = int | Literal["latest", "best"] | None

_NAME = re.compile(r"(\d{6,})-step-(\d+)\Z")
_ASIDE = ".damaged"


class _Saved(NamedTuple):
    """A checkpoint in the directory, whole or damaged."""

    order: int
    step: int
    path: Path


class Checkpoints:
    """The checkpoints of one run, in one directory."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        keep_last: int | None = 3,
        keep_best: int = 1,
        *,
        best: Literal["min", "max"] = "min",
        read_only: bool = False,
        on_retry: Callable[[str], None] = lambda text: None,
    ):
        """Opens a directory, and makes it if need be. All processes of a run open the same, shared one.

        Args:
            directory: where the checkpoints are.
            keep_last: how many of the last ones are kept; None keeps all.
            keep_best: how many of those with the best metric are kept beside them.
            best: whether the best metric is the least or the greatest.
            read_only: to look only. Otherwise no other run may write into the directory until `close`.
            on_retry: told what could not be written, before it is tried again.
        """
        for name, value, least in (("keep_last", keep_last, 1), ("keep_best", keep_best, 0)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise CheckpointError(f"{name} is at least {least}, not {value!r}.", fix="keep_last=None keeps all.")
        if best not in ("min", "max"):
            raise CheckpointError(f'best is "min" or "max", not {best!r}.')
        if "://" in str(directory):
            raise CheckpointError(
                "checkpoints are kept in a file system.",
                values=str(directory),
                fix="mount the bucket, and name its path.",
            )
        self.directory = Path(directory).expanduser().resolve()
        self.keep_last, self.keep_best, self.best_is, self.read_only = keep_last, keep_best, best, read_only
        self._on_retry = on_retry
        self._saving: tuple[int, threading.Thread, list[CheckpointError]] | None = None
        self._lock: Lock | None = None
        self._may_rewrite = False
        self._next_order, self._copies = 0, Copies()
        if read_only:
            if not self.directory.is_dir():
                raise CheckpointError("there is no such checkpoint directory.", values=str(self.directory))
            return
        if jax.process_index() == 0:
            self._open()
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"meshax checkpoints in {self.directory}")
        self._next_order = max((saved.order for saved in self._saved()), default=0) + 1
        atexit.register(self.close)

    def _open(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.directory)
            for left in self.directory.glob(f"*-step-*{TEMPORARY}"):
                shutil.rmtree(left)
        except Held as held:
            raise held_by(self.directory, held) from None
        except OSError as error:
            if self._lock is not None:
                self._lock.release()
            raise CheckpointError(
                "this directory cannot be written to.",
                values=f"{self.directory}: {error.strerror or error}",
                fix="correct its permissions, or name another one.",
            ) from error

    def _open_again(self) -> None:
        """Takes the lock of a directory that was emptied, or has come back."""
        if self._lock is None or not self._lock.is_gone():
            return
        if self.directory.parent.is_dir():  # otherwise a disk is away, and this is where it was
            self.directory.mkdir(exist_ok=True)
        self._lock = Lock(self.directory)

    def prepare(self, tree: Any) -> None:
        """Gets ready to save such trees, so that the first `save` stops the training no longer than the others."""
        prepare_tree(leaves_of(tree), self._copies)

    def save(
        self,
        step: int,
        tree: Any,
        extra: Mapping[str, Any] | None = None,
        metric: float | None = None,
        wait: bool = False,
    ) -> None:
        """Saves a tree while the training goes on. An error is raised by the next call, or by `wait`.

        Args:
            step: the step of the training.
            tree: a pytree of tensors, arrays, numbers and keys; its values are copied before the call returns.
            extra: what JSON can hold: the state of the data, the configuration, metrics.
            metric: what `best` compares.
            wait: return only when the checkpoint is on the disk.

        Communication: none.
        """
        self.wait()
        if self.read_only or (self._lock is None and jax.process_index() == 0):
            state = "opened with read_only=True" if self.read_only else "closed"
            raise CheckpointError(f"these checkpoints are {state}.", values=str(self.directory), fix="open them again.")
        if self._lock is not None and self._lock.is_lost() and not self._lock.is_gone():
            raise taken_over(self.directory, self._lock.holder())
        step = self._check_step(step)
        extra = {} if extra is None else dict(extra)
        check_json(extra, "extra")
        leaves = leaves_of(tree)
        manifest = Manifest(
            step=step,
            metric=None if metric is None else float(metric),
            extra=extra,
            arrays={name: entry_of(leaf) for name, leaf in leaves.items()},
            files={},
            made_by={"meshax": meshax_version(), "jax": jax.__version__},
        )
        name = f"{self._next_order:06}-step-{step}"
        self._next_order += 1
        place = jax.process_index(), jax.process_count()
        snapshots = snapshot_tree(leaves, self._copies)
        saving = Saving(self.directory, name, manifest, snapshots, *place, self._open_again, self._on_retry)
        errors: list[CheckpointError] = []
        thread = threading.Thread(target=self._write, args=(saving, errors), name="meshax-checkpoint")
        self._saving = (step, thread, errors)
        thread.start()
        if wait:
            self.wait()

    def _check_step(self, step: int) -> int:
        if isinstance(step, bool) or not hasattr(step, "__index__") or step < 0:
            raise CheckpointError(f"{step!r} is not a step.", rule="a step is an integer, 0 or more.")
        steps = self.steps()
        if steps and step <= max(steps) and not self._may_rewrite:
            raise CheckpointError(
                f"this directory holds checkpoints of another run, up to step {max(steps)}.",
                values=f"step {step}, {self.directory}",
                rule="saving an earlier step would make that run's checkpoints give way.",
                fix="restore one of them first, to go on from it, or name another directory.",
            )
        self._may_rewrite = True
        return int(step)

    def _write(self, saving: Saving, errors: list[CheckpointError]) -> None:
        try:
            saving.run()
        except Exception as error:
            errors.append(not_saved(self.directory, saving.manifest.step, saving.num_bytes, error))
            return
        try:
            if saving.process == 0:
                self._thin_out()
        except OSError as error:
            errors.append(
                CheckpointError(
                    f"step {saving.manifest.step} is saved, but older checkpoints cannot be deleted.",
                    values=str(error),
                    fix="correct the permissions of the directory.",
                )
            )

    def _thin_out(self) -> None:
        """Deletes what is neither among the last nor among the best."""
        saved = self._saved()
        kept = set(saved if self.keep_last is None else saved[-self.keep_last :])
        kept |= set(self._ranked(saved)[: self.keep_best])
        kept |= set([one for one in saved if looks_whole(one.path)][-1:])  # whatever has become of later ones
        for one in self._saved(replaced=True):
            if one not in kept:
                dying = one.path.with_name(one.path.name + TEMPORARY)
                one.path.rename(dying)
                shutil.rmtree(dying)

    def is_writing(self) -> bool:
        """Whether the last `save` is not on the disk yet."""
        return self._saving is not None and self._saving[1].is_alive()

    def wait(self) -> None:
        """Waits until the last `save` is on the disk, and raises what went wrong with it."""
        if self._saving is not None:
            _, thread, errors = self._saving
            thread.join()
            self._saving = None
            if errors:
                raise errors[0]

    def close(self) -> None:
        """Waits for the last `save`, and lets another run write."""
        try:
            self.wait()
        finally:
            atexit.unregister(self.close)
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _saved(self, replaced: bool = False) -> list[_Saved]:
        """Lists the checkpoints in the order of saving; of two of one step, the first has been replaced."""
        names = os.listdir(self.directory) if self.directory.is_dir() else []  # a disk may be away for a while
        every = [_Saved(int(m[1]), int(m[2]), self.directory / m[0]) for name in names if (m := _NAME.match(name))]
        last = {saved.step: saved for saved in sorted(every)}
        return sorted(every if replaced else last.values())

    def _ranked(self, saved: list[_Saved]) -> list[_Saved]:
        """Returns those with a metric, the best first; among equals, the first saved."""
        metrics = {}
        for one in saved:
            with contextlib.suppress(Damage, OtherVersion):
                metric = read_manifest(one.path).metric
                if metric is not None and not math.isnan(metric):
                    metrics[one] = metric if self.best_is == "min" else -metric
        return sorted(metrics, key=lambda one: metrics[one])

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints in the directory, in the order of saving."""
        return [saved.step for saved in self._saved()]

    def latest(self) -> int | None:
        """Returns the step that was saved last, None if there is none."""
        steps = self.steps()
        return steps[-1] if steps else None

    def best(self) -> int | None:
        """Returns the step of the best metric, None if there is none."""
        ranked = self._ranked(self._saved())
        return ranked[0].step if ranked else None

    def describe(self, step: Step = None) -> Manifest:
        """Returns what a checkpoint holds; `print` shows it. Its files are not verified."""
        chosen = self._choose(step)
        try:
            return read_manifest(chosen.path)
        except OtherVersion as other:
            raise of_another_version(chosen.step, chosen.path, other) from None
        except Damage as damage:
            raise Damaged(
                f"the manifest of step {chosen.step} is damaged.", values=f"{chosen.path.name}/{damage}"
            ) from None

    def restore(
        self,
        step: Step = None,
        *,
        like: Any,
        mesh: Mesh,
        layout: Layout | RulesLike = "",
        dtype: Any = None,
        partial: bool = False,
    ) -> tuple[Any, dict[str, Any]]:
        """Reads a checkpoint onto a mesh, after a look at every file; returns the tree and the extra.

        Args:
            step: a step, "best", or "latest" (the default).
            like: a tree as it was saved; its arrays may be `jax.ShapeDtypeStruct`.
            mesh: the processors, not necessarily those that saved.
            layout: the rules, not necessarily those that saved.
            dtype: what floating arrays become; "like": what they are in `like`. By default they have to agree.
            partial: read a part of the checkpoint: it may hold more than `like`.

        Communication: none; processes tell each other whether the files are whole.
        """
        self.wait()
        put((), mesh, layout)  # checks both
        chosen = self._choose(step)
        manifest = self._verified(chosen)
        leaves = leaves_of(like)
        saved, sources = sources_of(manifest.arrays, leaves)
        differences = find_differences(saved, leaves, dtype, partial)
        if differences:
            raise CheckpointError(
                f"the checkpoint of step {chosen.step} is not of this model.",
                values=shortened(differences),
                rule="names, dims, sizes and dtypes are those of the tree.",
                fix="restore into a tree as it was saved; for another dtype, pass dtype=; for a part, partial=True.",
            )
        setting = Setting(mesh, layout if isinstance(layout, Layout) else Layout(layout))
        dtypes = dtypes_to_read(saved, leaves, dtype)
        tree = read_tree(chosen.path / ARRAYS, like, leaves, sources, dtypes, setting)
        self._may_rewrite = True
        return tree, dict(manifest.extra)

    def on_host(self, step: Step = None) -> tuple[Manifest, Reader]:
        """Returns what a checkpoint holds and a reader of its arrays, after a look at every file."""
        self.wait()
        chosen = self._choose(step)
        return self._verified(chosen), Reader(chosen.path / ARRAYS)

    def _choose(self, step: Step) -> _Saved:
        saved = self._saved()
        if not saved:
            raise CheckpointError("there is no checkpoint yet.", values=str(self.directory), fix="train first.")
        if step is None or step == "latest":
            return saved[-1]
        if step == "best":
            ranked = self._ranked(saved)
            if not ranked:
                raise CheckpointError(
                    "no checkpoint has a metric.", values=str(self.directory), fix="save with metric=, or name a step."
                )
            return ranked[0]
        for one in saved:
            if one.step == step:
                return one
        raise CheckpointError(
            f"there is no checkpoint of step {step}.",
            values=str(self.directory),
            fix=f"choose one of {', '.join(map(str, self.steps()))}.",
        )

    def _verified(self, chosen: _Saved) -> Manifest:
        try:
            manifest, damage = verify(chosen.path)
        except OtherVersion as other:
            raise of_another_version(chosen.step, chosen.path, other) from None
        if manifest is not None and not damage:
            return manifest
        whole = self.whole_before(chosen.step)
        raise Damaged(
            f"the checkpoint of step {chosen.step} is damaged.",
            values=shortened([f"{chosen.path.name}/{line}" for line in damage]),
            rule="every file has the size and the sha256 that the manifest says.",
            fix="no older checkpoint verifies."
            if whole is None
            else f"step {whole} verifies: take that, or remove those after it, to go on from there.",
        )

    def whole_before(self, step: int) -> int | None:
        """Returns the last step saved before another one that is as it was written. Processes share the work."""
        order = self._choose(step).order
        others = (one for one in reversed(self._saved()) if one.order < order)
        return next((one.step for one in others if is_whole(one.path)), None)

    def set_aside(self, step: int) -> list[str]:
        """Renames what was saved after a step, which is the latest then; returns the names. All processes call it."""
        chosen = self._choose(step)
        later = [one for one in self._saved(replaced=True) if one.order > chosen.order]
        if jax.process_index() == 0:
            for one in later:
                one.path.rename(one.path.with_name(one.path.name + _ASIDE))
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"meshax set aside in {self.directory}")
        self._may_rewrite = True
        return [one.path.name + _ASIDE for one in later]
