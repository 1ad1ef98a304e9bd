"""HTML pages: each is one file that works offline."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from hvscale import __version__
from hvscale.core.run_folder import Host
from hvscale.report.tables import TableModel

TEMPLATES = Path(__file__).parent / "templates"


def render_page(
    template: str,
    figures: Mapping[str, go.Figure],
    *,
    folder: Path = TEMPLATES,
    filters: Mapping[str, Callable[..., Any]] | None = None,
    **context: Any,
) -> str:
    """Render `template`, which extends base.html.j2, from `folder`.

    `figures`: by the id of the page's element; a page without any lacks Plotly's 4.5 MB.
    `context`: at least `title` and `warnings`; also
    `what` and `facts` if the template keeps the base's header. A missing variable raises
    jinja2.UndefinedError.
    """
    return render_template(
        template,
        folder=folder,
        filters=filters,
        figures=Markup(script_safe(figures)),  # noqa: S704 - made safe there
        plotly=Markup(get_plotlyjs() if figures else ""),  # noqa: S704 - Plotly's own file
        version=__version__,
        **context,
    )


def render_template(
    template: str, *, folder: Path, filters: Mapping[str, Callable[..., Any]] | None = None, **context: Any
) -> str:
    """Render `template` from `folder`. Only HTML templates (*.html.j2) escape text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, TEMPLATES]),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(filters or {})
    return environment.get_template(template).render(**context)


def script_safe(figures: Mapping[str, go.Figure]) -> str:
    """JSON that cannot close the script element around it."""
    text = "{" + ",".join(f"{json.dumps(name)}:{figure.to_json()}" for name, figure in figures.items()) + "}"
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class PageDocument(Protocol):
    """The fields of a study's document that its page needs."""

    folder: str
    host: Host | None
    warnings: list[str]

    @property
    def state(self) -> str: ...


def study_page(
    document: PageDocument,
    *,
    facts: list[str],
    tables: list[TableModel],
    figures: Mapping[str, tuple[str, go.Figure]],
    what: str = "",
    command: str = "",
) -> str:
    """The page of a study: header, tables, then figures.

    `what` describes the measurement; `command` replaces it. `facts`: further parts of the header.
    `figures`: heading and figure by the id of the page's element.
    """
    return render_page(
        "study.html.j2",
        {name: figure for name, (_, figure) in figures.items()},
        title=title(document),
        what=what,
        command=command,
        facts=[*facts, *study_facts(document)],
        warnings=document.warnings,
        tables=tables,
        headings={name: heading for name, (heading, _) in figures.items()},
    )


def title(document: PageDocument) -> str:
    """The name of the study's folder."""
    return Path(document.folder).name


def study_facts(document: PageDocument) -> list[str]:
    """The host, and the state of the study."""
    host = document.host
    return [*([f"{host.name}, {host.cpu}, {host.cores} cores"] if host is not None else []), document.state]
