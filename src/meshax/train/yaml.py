"""Options from a YAML file: read as data, never as objects. What a run writes itself is TOML and JSON."""

import re
from typing import Any

from ..extras import extra

# PyYAML takes 3e-4 for a text, as YAML once had it; a rate is nearly always written so.
_SCIENTIFIC = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")


def read_yaml(text: str) -> Any:
    r"""Returns what a YAML file holds: tables, lists, texts and numbers; raises ValueError if it is none.

    >>> read_yaml("steps: 50\noptimizer: {rate: 3e-4}")
    {'steps': 50, 'optimizer': {'rate': 0.0003}}
    """
    with extra("train", "files of options in YAML"):
        import yaml

    class Loader(yaml.SafeLoader):
        """Knows plain values only, and no name twice."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            names = [self.construct_object(name) for name, _ in node.value]
            if twice := [name for name in names if names.count(name) > 1]:
                raise yaml.constructor.ConstructorError(None, None, f"{twice[0]!r} is there twice", node.start_mark)
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _SCIENTIFIC, list("-+0123456789"))
    loader = Loader(text)
    try:
        return loader.get_single_data()
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    finally:
        loader.dispose()
