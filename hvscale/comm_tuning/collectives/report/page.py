"""The study as one self-contained HTML page: the decision table, and the measurements by case."""

import plotly.graph_objects as go

from hvscale.comm_tuning.collectives.decide.decide import SizeRow
from hvscale.comm_tuning.collectives.document import TuneCollectivesDocument
from hvscale.comm_tuning.collectives.report.figures import case_figures, cases
from hvscale.comm_tuning.collectives.report.tables import (
    by_case,
    describe_case,
    eager_limits_table,
    fits_table,
    mean_gain,
    rules_table,
    sizes_table,
    verdict,
)
from hvscale.core.units import human_bytes, human_number
from hvscale.report.page import render_page, study_facts, title


def page(document: TuneCollectivesDocument) -> str:
    """The page as HTML. `document` must contain at least one point without wrong results."""
    figures: dict[str, go.Figure] = {}
    sections = []
    rows = by_case(document)
    by_size = sizes_table(document)
    for number, case in enumerate(cases(document)):
        found = {f"{name}-{number}": figure for name, figure in case_figures(document, case).items()}
        figures |= found
        heading = describe_case(case)
        sections.append(
            {
                "id": f"case-{number}",
                "heading": heading,
                "gain": describe_gain(rows.get(case, [])),
                "charts": list(found),
                "rows": by_size.groups.get(heading, []),
            }
        )
    link = [f"links of {document.link_bits_per_second / 1e9:g} Gbit/s"] if document.link_bits_per_second else []
    return render_page(
        "tune-collectives.html.j2",
        figures,
        title=title(document),
        what=f"{', '.join(document.operations)} on {', '.join(map(str, document.nps))} ranks: {document.library or document.mpi}",
        facts=[*link, *study_facts(document)],
        verdict=verdict(document),
        warnings=document.warnings,
        rules=rules_table(document),
        sections=sections,
        by_size=by_size,
        others=[table for table in (eager_limits_table(document), fits_table(document.fits)) if table.groups],
    )


def describe_gain(rows: list[SizeRow]) -> str:
    """The gains of one case in a sentence."""
    if not rows:
        return "No decision for this case: the baseline, the library with nothing set, was not measured."
    best = max(rows, key=lambda row: row.gain)
    if not any(row.significant for row in rows):
        return f"No significant difference from the library at any of {len(rows)} sizes."
    worst = min(rows, key=lambda row: row.gain)
    return (
        f"The table is {human_number(mean_gain(rows))} times as fast as the library with nothing set: geometric mean over {len(rows)} sizes. "
        f"The gain is between {human_number(worst.gain)} at {human_bytes(worst.bytes)} and {human_number(best.gain)} at "
        f"{human_bytes(best.bytes)}."
    )
