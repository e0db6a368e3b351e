"""Fills the tables of docs/errors.md from the messages in the source: `python docs/errors_page.py`.

A table stands between two comments, of which the first names the modules, or folders of modules, whose messages it
lists: the source is read as syntax trees, so that no message is written twice. What a message fills in when it is
raised is shown as `<name>`.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src" / "meshax"
PAGE = DOCS / "errors.md"
TABLE = re.compile(r"(<!-- messages of (.*?) -->\n).*?(<!-- end of messages -->)", re.DOTALL)
HEAD = "| error | message | rule | what to do |\n|---|---|---|---|\n"
BASE = "MeshaxError"
OR = " or: "  # between texts of which one is chosen when the error is raised
# Functions whose result is a sentence of its own.
SENTENCES = {"did_you_mean": "the nearest names are offered", "_nearest": "the nearest files are offered"}


@dataclass(frozen=True)
class Message:
    """What one place of the source raises, in the parts that every message has."""

    error: str
    what: str
    rule: str
    fix: str

    def row(self) -> str:
        rule, fix = (part.replace("<", "\\<") for part in (self.rule, self.fix))
        return "| " + " | ".join(x.replace("|", "\\|") for x in (self.error, f"`{self.what}`", rule, fix)) + " |\n"


@dataclass(frozen=True)
class Module:
    """One source file, and the messages in it."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(SOURCE).with_suffix("").as_posix()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """The texts that have a name in the module."""
        assigned = [node for node in self.tree.body if isinstance(node, ast.Assign)]
        return {target.id: node.value for node in assigned for target in node.targets if isinstance(target, ast.Name)}

    @cached_property
    def functions(self) -> list[ast.FunctionDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)]

    def messages(self) -> Iterator[Message]:
        functions = {id(node): function for function in self.functions for node in ast.walk(function)}
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        for node in sorted(calls, key=lambda node: node.lineno):
            if (error := called(node)) in ERRORS and node.args:
                for names in self._bindings(node, functions.get(id(node))):
                    parts = {keyword.arg: keyword.value for keyword in node.keywords}
                    rule, fix = (self._text(parts[part], names) if part in parts else "" for part in ("rule", "fix"))
                    what = self._text(node.args[0], names)
                    whole = isinstance(node.args[0], ast.JoinedStr | ast.Constant | ast.BinOp)
                    for one in [what] if whole else what.split(OR):
                        if not re.fullmatch("<[^>]*>", one):  # a text of another error, passed on
                            yield Message(error if ERRORS[error] else BASE, one, rule, fix)

    def _bindings(self, node: ast.Call, function: ast.FunctionDef | None) -> list[dict[str, ast.expr]]:
        """What names stand for at a place: where a function is handed its message, once for each of its calls."""
        if function is None:
            return [{}]
        names = _assigned(function)
        parameters = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
        handed = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)} & set(parameters)
        if not handed & {"what", "rule", "fix", "problem"}:
            return [names]
        calls = [call for call in ast.walk(self.tree) if isinstance(call, ast.Call) and called(call) == function.name]
        return [
            names
            | dict(zip(parameters, call.args, strict=False))
            | {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
            for call in calls
        ]

    def _text(self, node: ast.expr, names: dict[str, ast.expr]) -> str:
        match node:
            case ast.Constant(value=str(text)):
                return " ".join(text.split("\n")).strip("\n")
            case ast.JoinedStr(values=parts):
                return "".join(self._text(part, names) for part in parts)
            case ast.FormattedValue(value=value, conversion=conversion):
                shown = self._filled_in(value, names)
                return f"'{shown}'" if conversion == ord("r") and shown.startswith("<") else shown
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._text(left, names) + self._text(right, names)
            case ast.IfExp(body=body, orelse=orelse):
                both = [text for text in (self._text(body, names), self._text(orelse, names)) if text]
                return OR.join(dict.fromkeys(both))
            case ast.Name(id=name) if name in names:
                return self._text(names[name], {key: value for key, value in names.items() if key != name})
            case ast.Name(id=name) if name in self.constants:
                return self._text(self.constants[name], {})
            case ast.Call() if (sentence := SENTENCES.get(called(node))) is not None:
                return sentence
        return self._filled_in(node, names)

    def _filled_in(self, node: ast.expr, names: dict[str, ast.expr]) -> str:
        """What stands for a value: its name in the source, if it is one that says something."""
        match node:
            case ast.Call() if (sentence := SENTENCES.get(called(node))) is not None:
                return sentence
            case ast.Constant(value=value):
                return str(value)
            case ast.IfExp(body=ast.Constant(value=str()), orelse=ast.Constant(value=str())):
                return self._text(node, names)
            case ast.Name(id=name) if name in self.constants and isinstance(self.constants[name], ast.Constant):
                return self._text(node, {})
            case ast.Name(id=name) | ast.Attribute(attr=name) if len(name) > 2:
                return f"<{name.strip('_')}>"
        return "<...>"


def _assigned(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """The texts that a function gives a name before it raises; of two, both."""
    texts: dict[str, ast.expr] = {}
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant() | ast.JoinedStr() | ast.IfExp() as text):
                texts[name] = ast.IfExp(ast.Constant(True), texts[name], text) if name in texts else text
    return texts


def called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def error_classes() -> dict[str, str]:
    """The classes of our errors, each with what it says of itself: those of errors.py first."""
    says: dict[str, str] = {}
    for path in [SOURCE / "errors.py", *sorted(SOURCE.rglob("*.py"))]:
        for node in Module(path).tree.body:
            if isinstance(node, ast.ClassDef) and any(getattr(base, "id", "").endswith("Error") for base in node.bases):
                says.setdefault(node.name, (ast.get_docstring(node) or "").splitlines()[0])
    return says


ERRORS = error_classes() | {"error": ""}  # the last: a class that a function is handed


def modules() -> list[Module]:
    return [Module(path) for path in sorted(SOURCE.rglob("*.py"))]


def section_of(module: str, sections: list[str]) -> str:
    """The section that lists a module: the one that names it, or the nearest of the folders it is in."""
    parts = module.split("/")
    prefixes = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((s for prefix in prefixes for s in sections if prefix in s.split()), "")


def filled(page: str) -> str:
    """Returns the page with its tables as the source has them."""
    sections = [match[2] for match in TABLE.finditer(page)]
    rows: dict[str, list[str]] = {section: [] for section in sections}
    public = {node.name for node in Module(SOURCE / "errors.py").tree.body if isinstance(node, ast.ClassDef)}
    rows["the classes"] = [f"| `mx.{name}` | {says} |\n" for name, says in ERRORS.items() if name in public]
    for module in modules():
        messages = dict.fromkeys(module.messages())
        if messages:
            rows[section_of(module.name, sections)] += [message.row() for message in messages]

    def table(match: re.Match[str]) -> str:
        head = "| class | says |\n|---|---|\n" if match[2] == "the classes" else HEAD
        return f"{match[1]}{head}{''.join(rows[match[2]])}{match[3]}"

    return TABLE.sub(table, page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
