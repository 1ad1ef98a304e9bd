"""A study of collectives as one HTML page that needs no network: the table, and for each collective and np what it rests on."""

import plotly.graph_objects as go

from hvscale.comm_tuning.collectives.decide.decide import SizeRow
from hvscale.comm_tuning.collectives.document import TuneCollectives
from hvscale.comm_tuning.collectives.report.figures import place_figures, places
from hvscale.comm_tuning.collectives.report.tables import (
    by_place,
    eager_limits_shown,
    fits_shown,
    mean_gain,
    place_in_words,
    rules_shown,
    sizes_shown,
    verdict,
)
from hvscale.core.units import human_bytes, human_number
from hvscale.report.page import render_page, study_facts, title


def page(document: TuneCollectives) -> str:
    """`document` holds at least one point without wrong results."""
    figures: dict[str, go.Figure] = {}
    sections = []
    rows = by_place(document)
    by_size = sizes_shown(document)
    for number, place in enumerate(places(document)):
        found = {f"{name}-{number}": figure for name, figure in place_figures(document, place).items()}
        figures |= found
        heading = place_in_words(place)
        sections.append(
            {
                "id": f"place-{number}",
                "heading": heading,
                "gain": gain_in_words(rows.get(place, [])),
                "charts": list(found),
                "rows": by_size.groups.get(heading, []),
            }
        )
    link = [f"links of {document.link / 1e9:g} Gbit/s"] if document.link else []
    return render_page(
        "tune-collectives.html.j2",
        figures,
        title=title(document),
        what=f"{', '.join(document.operations)} on {', '.join(map(str, document.nps))} ranks: {document.library or document.mpi}",
        facts=[*link, *study_facts(document)],
        verdict=verdict(document),
        warnings=document.warnings,
        rules=rules_shown(document),
        sections=sections,
        by_size=by_size,
        others=[shown for shown in (eager_limits_shown(document), fits_shown(document.fits)) if shown.groups],
    )


def gain_in_words(rows: list[SizeRow]) -> str:
    """Of one place."""
    if not rows:
        return "Nothing is decided here: the library with nothing set was not measured."
    most = max(rows, key=lambda row: row.gain)
    if not any(row.apart for row in rows):
        return f"No difference to the library at any of {len(rows)} sizes."
    least = min(rows, key=lambda row: row.gain)
    return (
        f"The table is {human_number(mean_gain(rows))} times as fast as the library with nothing set: geometric mean over {len(rows)} sizes. "
        f"At most {human_number(most.gain)} times, at {human_bytes(most.bytes)}; at least {human_number(least.gain)} times, "
        f"at {human_bytes(least.bytes)}."
    )
