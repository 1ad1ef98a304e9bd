"""guide.html: the guide as one page with figures, which works offline."""

from hvscale.comm_tuning.tune.outputs.figures import guide_figures
from hvscale.comm_tuning.tune.outputs.guide import FILTERS, TEMPLATES, Guide
from hvscale.comm_tuning.tune.outputs.output_format import OutputFormat, TunedJob, register
from hvscale.report.page import render_page


def text(tuned: TunedJob) -> str:
    figures, guide = guide_figures(tuned.document), Guide(tuned)
    return render_page(
        "guide.html.j2",
        figures,
        folder=TEMPLATES,
        filters=FILTERS,
        title=guide.title,
        warnings=tuned.document.warnings,
        guide=guide,
        shown=list(figures),
    )


register(OutputFormat(file="guide.html", what="this guide, with figures", text=text))
