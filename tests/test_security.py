"""What comes from elsewhere is data: it runs no code, stays in its folder, and is believed in nothing.

What a user hands over to be run is run: a target of `meshax explain`, and a program that was exported.
"""

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import meshax as mx
from meshax.cli.serve import Serve
from meshax.data.tokens import TokenFile
from meshax.launch import local
from meshax.train.checkpoint import Checkpoints, Damaged, arrays, manifest
from processes import environment

SOURCE = Path(mx.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
ONE = mx.Mesh("x:1")

# Modules that make code, or objects by name, of what they read.
BANNED_MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "yaml",
    "jsonpickle",
}
BANNED_CALLS = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "tarfile.extractall", "shutil.unpack_archive"),
    *("torch.load", "pandas.read_pickle", "jnp.load", "numpy.load", "numpy.fromregex"),
}
ALLOWED = {  # each with its reason
    ("plan/compile/targets.py", "exec_module"): "the file that the user names as a program",
    ("bench/plain_torch.py", "torch.compile"): "compiles a model of ours",
    ("train/yaml.py", "yaml"): "its SafeLoader alone, which knows plain values",
}
LISTENS = {  # who may open a socket that others can reach, and where by default
    "launch/channel.py": "the address of the coordinator, which is loopback unless one is named",
    "serve/server.py": "--host, which is loopback unless another is named",
}


def calls(source):
    """The calls of a module: their names as written, with dots, and their arguments by name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {one.arg: ast.unparse(one.value) for one in node.keywords}


def imported(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def offences(name, source):
    """What a module does that could make code of data."""
    seen = [
        f"{name}: imports {module}"
        for module in imported(source)
        if module in BANNED_MODULES and (name, module) not in ALLOWED
    ]
    for called, options in calls(source):
        full, last = called.replace("np.", "numpy.", 1) if called.startswith("np.") else called, called.split(".")[-1]
        is_banned = full in BANNED_CALLS or last in ("extractall", "exec_module", "unpack_archive")
        is_banned &= not (full == "numpy.load" and options.get("allow_pickle") == "False")
        if "shell" in options or (is_banned and not {(name, called), (name, last)} & ALLOWED.keys()):
            seen.append(f"{name}: calls {called}")
    return seen


@pytest.mark.parametrize(
    "line",
    [
        *("import pickle", "from joblib import load", "np.load(path)", "numpy.load(path, allow_pickle=True)"),
        *("torch.load(path)", "subprocess.run(text, shell=True)", "archive.extractall()", "os.system(text)"),
    ],
)
def test_what_would_be_an_offence_is_seen(line):
    assert len(offences("some.py", line)) == 1


def test_nothing_that_makes_code_of_data_is_called():
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in MODULES}
    assert not [one for name, text in texts.items() for one in offences(name, text)]


def test_who_listens_listens_to_this_machine_unless_told_otherwise():
    opening = {
        path.relative_to(SOURCE).as_posix()
        for path in MODULES
        for called, _ in calls(path.read_text(encoding="utf-8"))
        if called.endswith(("create_server", "HTTPServer", ".listen"))
        or (called.endswith(".bind") and "socket" in path.read_text(encoding="utf-8"))
    }
    assert opening == LISTENS.keys()
    assert inspect.signature(Serve).parameters["host"].default == local._HOST == "127.0.0.1"


WATCHED = """
import sys
seen = []
def watch(event, args):
    if event in ("pickle.find_class", "marshal.loads", "marshal.load") and not importing():
        seen.append((event, args))
def importing():
    frame = sys._getframe(2)
    while frame:
        if "importlib" in frame.f_code.co_filename: return True
        frame = frame.f_back
    return False
import numpy as np, meshax as mx
from pathlib import Path
from meshax.data import Batches, Text, Vocabulary, tokenize
from meshax.train.checkpoint import Checkpoints
folder = Path(sys.argv[1])
(folder / "text.txt").write_text("\\n".join(f"some words {n}" for n in range(200)))
sys.addaudithook(watch)
text = Text.find(folder / "text.txt", per="line")
Vocabulary.train(["some words"], size=260).save(folder / "vocabulary.json")
tokens = tokenize(text, Vocabulary.load(folder / "vocabulary.json"), folder / "tokens")
next(Batches(tokens, 7, 2))
x = mx.tensor(np.arange(6.0), "elements")
with Checkpoints(folder / "checkpoints") as checkpoints:
    checkpoints.save(1, x, wait=True)
    checkpoints.restore(like=x, mesh=mx.Mesh("x:1"))
print(seen)
"""


def test_python_unpickles_nothing_while_we_read(tmp_path):
    """Python itself says when an object is made by name."""
    command = [sys.executable, "-c", WATCHED, str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


# Checkpoints


def saved(directory):
    x = mx.tensor(np.arange(600, dtype=np.float32).reshape(20, 30), "rows cols")
    with Checkpoints(directory) as checkpoints:
        checkpoints.save(1, {"x": x}, wait=True)
    return directory / "000001-step-1", {"x": x}


def forged(path, **changes):
    """Writes a manifest that is as whole as any, but says other things."""
    body = json.loads((path / "manifest.json").read_text())
    del body["sha256"]
    body |= changes
    (path / "manifest.json").write_text(json.dumps({"sha256": manifest._hash_of(body), **body}))


@pytest.mark.parametrize("name", ["../secret", "arrays/../../../secret", "/etc/passwd"])
def test_a_manifest_names_files_of_its_own(tmp_path, name):
    path, like = saved(tmp_path / "run")
    (tmp_path / "run" / "secret").write_text("secret")
    files = json.loads((path / "manifest.json").read_text())["files"]
    forged(path, files={**files, name: {"bytes": 6, "sha256": "0" * 64}})
    with pytest.raises(Damaged, match=f"manifest.json: names a file outside, {re.escape(repr(name))}"):
        Checkpoints(tmp_path / "run", read_only=True).restore(like=like, mesh=ONE)


def test_a_link_is_no_file_of_a_checkpoint(tmp_path):
    path, like = saved(tmp_path / "run")
    data = next(one for one in path.rglob("d/*") if one.is_file())
    data.rename(tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Damaged, match=f"{data.name}: is a link, not a file"):
        Checkpoints(tmp_path / "run", read_only=True).restore(like=like, mesh=ONE)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000], ids=["lists", "tables"])
def test_a_manifest_that_is_nested_without_end(tmp_path, content):
    path, like = saved(tmp_path)
    (path / "manifest.json").write_bytes(content)
    with pytest.raises(Damaged, match="manifest.json: is not JSON any more"):
        Checkpoints(tmp_path, read_only=True).restore(like=like, mesh=ONE)


def test_a_manifest_is_not_read_if_none_can_be_so_large(tmp_path, monkeypatch):
    path, like = saved(tmp_path)
    monkeypatch.setattr(manifest, "_MAX_BYTES", 100)
    with pytest.raises(Damaged, match=r"manifest.json: has [\d,]+ bytes, which none needs"):
        Checkpoints(tmp_path, read_only=True).restore(like=like, mesh=ONE)


def test_an_array_is_not_larger_than_its_files(tmp_path):
    """A petabyte by its description: nothing of that size is asked for."""
    huge = arrays.Snapshot((1 << 48,), np.dtype(np.float32), (1024,), [(((0, 1024),), np.ones(1024, np.float32))])
    arrays.write(tmp_path / "all" / "process-0", {"x": huge})
    arrays.merge(tmp_path / "all", [tmp_path / "all" / "process-0"])
    with pytest.raises(mx.CheckpointError) as error:
        arrays.Reader(tmp_path / "all").whole("x")
    what, values, fix = str(error.value).splitlines()
    assert what == "an array of a checkpoint says that it is larger than all files."
    assert values.startswith("  values: x: 1,125,899,906,842,624 bytes in ")
    assert fix == "  fix: do not trust this checkpoint; take another one."


# Tokens


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"key": "../../secret"}, "it names no file of tokens"),
        ({"dtype": "object"}, "it names no file of tokens"),
        ({"dtype": "O"}, "it names no file of tokens"),
        ({"tokens": -1}, "its counts are no numbers"),
        ({"documents": 1e300}, "its counts are no numbers"),
    ],
)
def test_a_manifest_of_tokens_is_checked(tmp_path, changes, said):
    body = {
        "format": 1,
        "key": "ab12",
        "dtype": "uint16",
        "tokens": 4,
        "documents": 1,
        "bytes": 9,
        "vocabulary_size": 9,
    }
    np.arange(4, dtype=np.uint16).tofile(tmp_path / "tokens-ab12.bin")
    np.array([0, 4], np.uint64).tofile(tmp_path / "offsets-ab12.bin")
    (tmp_path / "manifest.json").write_text(json.dumps(body))
    assert TokenFile(tmp_path).tokens.tolist() == [0, 1, 2, 3]
    (tmp_path / "manifest.json").write_text(json.dumps(body | changes))
    with pytest.raises(mx.DataError, match=said):
        TokenFile(tmp_path)
