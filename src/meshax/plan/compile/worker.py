"""Planning in a process of its own.

The TPU compiler slows down whoever loads it, prints to standard error, holds the interpreter while it compiles, and
takes its process with it when it fails badly. So `plan_apart` starts this module as a program, sends it one line of
JSON (which target, topology, mesh, layout), and reads lines back: the stages as they begin, then a result or an error.
The child leads a session of its own, which is killed when the parent is done with it, for whatever reason; and it ends
by itself when its standard input does: a parent that was killed leaves no orphan.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from ...errors import MeshaxError

_ENVIRONMENT = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "JAX_PLATFORMS": "cpu"}
_VIRTUAL = 64  # processors, as long as nobody knows how many the target's mesh has
_NOISE_LINES = 12  # of standard error that are worth showing when the child dies


def plan_apart(
    request: Mapping[str, Any], on_stage: Callable[[str], None], module: str = "meshax.plan.compile.worker"
) -> dict[str, Any]:
    """Compiles in another process.

    Args:
        request: `target`, `topology`, `mesh`, `layout`, `params`, `optimizer`, `rings`, `overlap`; `html`, a path or
            ""; and `width`, of the text, in columns, or None.
        on_stage: told each stage as it begins.
        module: what the process runs: one that calls `main` with what it takes to load the target.

    Returns:
        `plan`, as data, and `text`, for reading.
    """
    package = str(Path(__file__).parents[3])  # the child finds the same meshax, wherever it was imported from
    paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": paths}
    command = [sys.executable, "-P", "-m", module]
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile() as noise,
        subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=noise, env=environment, start_new_session=True
        ) as child,
    ):
        try:
            answer = _converse(child, request, on_stage)
            if answer is None:
                _raise_died(child, noise)
            return answer  # type: ignore[return-value]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def _converse(child: Any, request: Mapping[str, Any], on_stage: Callable[[str], None]) -> dict[str, Any] | None:
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(json.dumps(dict(request)).encode() + b"\n")
        child.stdin.flush()
    for line in child.stdout:
        said = json.loads(line)
        if "stage" in said:
            on_stage(said["stage"])
        elif "error" in said:
            raise MeshaxError(said["error"]) from RuntimeError(said["traceback"])
        else:
            return said["result"]
    return None


def _raise_died(child: Any, noise: IO[bytes]) -> None:
    status = child.wait()
    noise.seek(0)
    last = noise.read().decode(errors="replace").strip().splitlines()[-_NOISE_LINES:]
    reason = f"signal {-status}" if status < 0 else f"status {status}"
    raise MeshaxError(
        f"the compiling process ended with {reason}, and without an answer.",
        values="its last words:" + "".join(f"\n    {line[:200]}" for line in last) if last else "",
        fix="signal 9 most often means that this machine has too little memory for the compiler."
        if status == -9
        else "",
    )


def main(load: Callable[[str], Any] | None = None) -> None:
    """The child: reads one request, answers, ends.

    Args:
        load: makes a target of the text that the request has for it; by default that is FILE.py:FUNCTION.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what anybody prints is noise, not an answer

    def say(**message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    request = json.loads(_read_line())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        say(result=_plan(request, load, lambda stage: say(stage=stage)))
    except MeshaxError as error:
        words = [str(error), *user_notes(error, Path(sys.argv[0]).name)]
        say(error="\n".join(words), traceback=traceback.format_exc())
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        say(error=f"planning failed: {type(error).__name__}: {first[:500]}", traceback=traceback.format_exc())
    os._exit(0)  # the compiler's own clean-up takes seconds, and nobody needs it


def _plan(request: Mapping[str, Any], load: Any, on_stage: Callable[[str], None]) -> dict[str, Any]:
    import jax

    from ...mesh import Mesh
    from ..cost.hardware import KNOWN, find
    from ..cost.processors import assuming
    from ..printing.terminal import fitted
    from .planning import plan
    from .targets import blamed, load_target
    from .text import as_text
    from .topologies import CPU, check_size, machine_of

    on_stage("loading")
    start = time.perf_counter()
    is_cpu = request["topology"] == CPU
    if is_cpu:  # before the target uses JAX
        count = Mesh(request["mesh"], abstract=True).size if request["mesh"] else _VIRTUAL
        jax.config.update("jax_num_cpu_devices", count)
    machine = KNOWN["cpu"] if is_cpu else find(machine_of(request["topology"]))
    with assuming(machine):  # layers are as many programs as suits it
        target = (load or load_target)(request["target"])
    mesh = Mesh(target.axes(request["mesh"]), abstract=True)
    check_size(request["topology"], mesh)
    if is_cpu and mesh.size > count:
        with contextlib.suppress(RuntimeError):  # it has used JAX already
            jax.config.update("jax_num_cpu_devices", mesh.size)
    options = {
        name: request[name] for name in ("mesh", "layout", "params", "optimizer", "rings", "topology", "overlap")
    }
    program = target.build(**options)
    took = time.perf_counter() - start
    with blamed(target.name, target.path, "cannot be traced or compiled"):
        planned = plan(program, *target.args, hardware=request.get("hardware") or None, progress=on_stage)
    planned.report.overlap = request["overlap"]
    planned.took, planned.tokens = {"loading": took, **planned.took}, target.tokens or planned.tokens
    if request["html"]:
        planned.to_html(request["html"])
    return {"plan": planned.as_dict(), "text": as_text(planned, partial(fitted, width=request["width"]))}


def user_notes(error: Exception, entry: str) -> list[str]:
    """Returns the notes of an error that name the user's line, unless that is the file which started the process."""
    lines = [note for note in getattr(error, "__notes__", ()) if note.startswith("  line: ")]
    return [note for note in lines if not note.startswith(f"  line: {entry}:")]


def _read_line() -> bytes:
    """Reads standard input without a buffer: a thread waits for its end later."""
    line = b""
    while not line.endswith(b"\n"):
        if not (more := os.read(0, 1 << 16)):
            os._exit(1)
        line += more
    return line


def _end_with_parent() -> None:
    while os.read(0, 1 << 16):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
