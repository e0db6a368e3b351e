"""Trains a small decoder for thousands of steps on 8 virtual CPU devices while other work loads the cores.

Collectives on virtual devices can deadlock or abort on busy cores; this run shows that ours do not.

    python benchmarks/stress.py --steps 2000 --runs 5 --load 4
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import jax

jax.config.update("jax_num_cpu_devices", 8)
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import decoder  # noqa: E402
import meshax as mx  # noqa: E402

LAYOUT = "batch:data heads:model d_ff:model vocab:model"


def train(steps: int) -> tuple[float, float]:
    """Returns the last loss and the seconds it took; the loss is read only at the end, so calls run ahead."""
    program = mx.spmd(decoder.sgd, mx.Mesh("data:2 model:4"), LAYOUT, donate=0)
    w, batch = mx.put(decoder.init(), program.mesh, program.layout), decoder.tokens()
    start = time.perf_counter()
    for _ in range(steps):
        w, loss = program(w, *batch)
    return float(loss), time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=5, help="how often, each in a process of its own")
    parser.add_argument("--load", type=int, default=4, help="busy loops beside it")
    parser.add_argument("--once", action="store_true", help="train once, in this process")
    args = parser.parse_args()
    if args.once:
        loss, seconds = train(args.steps)
        print(f"loss {loss:.6f} after {args.steps} steps in {seconds:.1f} s", flush=True)
        return
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.load)]
    failed = 0
    try:
        for run in range(args.runs):
            command = [sys.executable, __file__, "--once", "--steps", str(args.steps)]
            status = subprocess.run(command, timeout=3600).returncode
            failed += status != 0
            print(f"run {run + 1} of {args.runs}: exit status {status}", flush=True)
    finally:
        for process in busy:
            process.kill()
    print(f"jax {jax.__version__}: {failed} of {args.runs} runs failed, with {args.load} busy loops beside them")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
