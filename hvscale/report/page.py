"""The page of a study: one HTML file that needs no network, with tables and figures."""

from pathlib import Path
from typing import Protocol

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from hvscale import __version__
from hvscale.core.run_folder import Host
from hvscale.report.figures import script_safe
from hvscale.report.tables import TableModel

TEMPLATES = Path(__file__).parent / "templates"


class Study(Protocol):
    """A document of a study, as far as its page needs it."""

    folder: str
    host: Host | None
    warnings: list[str]

    @property
    def state(self) -> str: ...


def study_page(
    document: Study, what: str, facts: list[str], tables: list[TableModel], figures: dict[str, tuple[str, go.Figure]]
) -> str:
    """`what` is measured, with what (`facts`); `figures`: with their headings, by the id of the page's element."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    host = document.host
    return environment.get_template("study.html.j2").render(
        title=Path(document.folder).name,
        what=what,
        facts=[*facts, *([f"{host.name}, {host.cpu}, {host.cores} cores"] if host is not None else []), document.state],
        warnings=document.warnings,
        tables=tables,
        headings={name: heading for name, (heading, _) in figures.items()},
        figures=Markup(script_safe({name: figure for name, (_, figure) in figures.items()})),  # noqa: S704 - made safe there
        plotly=Markup(get_plotlyjs()),  # noqa: S704 - Plotly's own file
        version=__version__,
    )
