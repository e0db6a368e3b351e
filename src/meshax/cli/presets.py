"""`meshax presets`."""

from dataclasses import asdict, dataclass
from typing import Any, cast

from .options import Reporting


@dataclass(kw_only=True)
class Presets(Reporting):
    """Lists the models that have names.

    meshax presets
    """

    def run(self) -> None:
        """Prints them."""
        from ..models.contract import parameter_count
        from ..models.presets import PRESETS, show_parameters

        rows: list[dict[str, Any]] = [
            {"name": p.name, "parameters": parameter_count(p.model), "family": p.family, "about": p.about}
            | {**p.batch, "model": asdict(cast(Any, p.model)), "glossary": dict(p.model.glossary)}
            | {"recipe": asdict(p.recipe), "mesh": p.mesh, "layout": p.layout}
            for p in PRESETS.values()
        ]
        lines = [f"{r['name']:14} {show_parameters(r['parameters']):>8} parameters  {r['about']}" for r in rows]
        self.report({"presets": rows}, "\n".join(lines))
