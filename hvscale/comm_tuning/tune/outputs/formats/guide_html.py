"""guide.html: the guide for people, as one page with figures that needs no network."""

from markupsafe import Markup
from plotly.offline import get_plotlyjs

from hvscale.comm_tuning.tune.outputs.figures import guide_figures
from hvscale.comm_tuning.tune.outputs.guide import render
from hvscale.comm_tuning.tune.outputs.output_format import OutputFormat, register
from hvscale.comm_tuning.tune.outputs.tuned_job import TunedJob
from hvscale.report.figures import script_safe


def text(tuned: TunedJob) -> str:
    figures = guide_figures(tuned.document)
    return render(
        "guide.html.j2",
        tuned,
        filters={},
        figures=Markup(script_safe(figures)),  # noqa: S704 - made safe there
        shown=list(figures),
        plotly=Markup(get_plotlyjs()),  # noqa: S704 - Plotly's own file
    )


register(OutputFormat(file="guide.html", what="this guide, with figures", text=text))
