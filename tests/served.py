"""The smallest model that writes, as a run; and a server of it in a process of its own, asked by a real client."""

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

from meshax.train.config import TrainConfig
from meshax.train.foreign import import_folder

ROOT = Path(__file__).parents[1]
SPLIT = ["--mesh", "data:2 model:4", "--layout", "batch:data heads:model d_ff:model vocab:model"]
QUICK = "--xla_backend_optimization_level=0"  # to compile


def write_run(folder):
    """Makes a run of the golden Llama, and returns its directory."""
    shutil.copytree(ROOT / "tests" / "golden" / "hugging_face" / "llama", folder / "llama")
    import_folder(str(folder / "llama"), TrainConfig(out=str(folder / "run"), batch=8, length=32), "")
    return folder / "run"


def environment(**changes):
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XLA_FLAGS": QUICK, "JAX_PLATFORMS": "cpu", **changes}


class Server:
    """`meshax serve` in a process group of its own."""

    def __init__(self, run, *options, **changes):
        command = [sys.executable, "-m", "meshax", "serve", "--run", str(run), "--port", "0", "--json", *options]
        self.process = subprocess.Popen(
            command, env=environment(**changes), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.err: list[str] = []
        self._reading = threading.Thread(target=lambda: self.err.extend(self.process.stderr), daemon=True)
        self._reading.start()
        line = self.process.stdout.readline()
        assert line, self.ended()
        self.url = json.loads(line)["url"]
        self.address = urlsplit(self.url).netloc

    def ended(self):
        """Waits for its end, and returns its exit status and what it said."""
        self.process.wait(timeout=60)
        self._reading.join()
        return self.process.returncode, "".join(self.err)

    def connect(self):
        return contextlib.closing(http.client.HTTPConnection(self.address, timeout=240))

    def ask(self, body, path="/v1/completions", method="POST", **headers):
        """Returns the status, the headers and the body of an answer."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        with self.connect() as connection:
            connection.request(method, path, data, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def completion(self, **fields):
        """Returns the answer to a completion that has one."""
        status, _, body = self.ask(fields)
        assert status == 200, body
        return json.loads(body)

    def text(self, **fields):
        (choice,) = self.completion(**fields)["choices"]
        return choice["text"]

    def streamed(self, **fields):
        """Returns the events of a stream."""
        status, headers, body = self.ask({**fields, "stream": True})
        assert status == 200 and headers["content-type"].startswith("text/event-stream"), body
        events = body.decode().split("\n\n")
        assert events.pop() == "" and all(event.startswith("data: ") for event in events)
        assert events.pop() == "data: [DONE]", body
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def metrics(self):
        """Returns the numbers of /metrics by their names."""
        _, _, body = self.ask(None, "/metrics", "GET")
        lines = [line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}


@contextlib.contextmanager
def serving(run, *options, **changes):
    server = Server(run, *options, **changes)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.ended()
        server.process.stdout.close()
        server.process.stderr.close()
