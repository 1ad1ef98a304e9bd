"""The state of a watched run as the web page shows it, and its recent history."""

import secrets
from collections import deque
from collections.abc import Callable, Iterable

from pydantic import BaseModel

from hvscale import __version__
from hvscale.core.units import human_number, human_share
from hvscale.profiling.watch.document import Watch
from hvscale.report.page import TEMPLATES, render_template
from hvscale.report.tables import TableModel
from hvscale.studies.run_watch.text import (
    calls_table,
    facts,
    human_bandwidth,
    human_time,
    late_table,
    log_text,
    sentences,
    title,
)

KEPT_SAMPLES = 300


class Chart(BaseModel):
    """A figure over the last samples; null: unknown in that sample."""

    name: str
    now: str
    highest: str
    span: str
    values: list[float | None]


class PageState(BaseModel):
    """What the page shows."""

    title: str
    facts: str
    sentences: list[str]
    charts: list[Chart]
    tables: list[TableModel]
    warnings: list[str]
    log: list[str]


class History:
    """The last samples of a run."""

    def __init__(self) -> None:
        self.samples: deque[Watch] = deque(maxlen=KEPT_SAMPLES)

    def add(self, watch: Watch) -> PageState:
        """Add a sample, and return what the page shows then."""
        if watch.period == "interval":
            # Only figures are kept of older samples.
            self.samples.append(watch.model_copy(update={"log_lines": [], "log_warnings": [], "late_ranks": None}))
        late = late_table(watch)
        return PageState(
            title=title(watch),
            facts=facts(watch),
            sentences=sentences(watch),
            charts=list(self._charts()),
            tables=[
                *([calls_table(watch)] if watch.rows or watch.point_to_point else []),
                *([late] if late is not None else []),
            ],
            warnings=[*watch.warnings, *map(log_text, watch.log_warnings)],
            log=[log_text(line) for line in watch.log_lines],
        )

    def _charts(self) -> Iterable[Chart]:
        if len(self.samples) < 2:
            return
        span = human_time((self.samples[-1].taken_at - self.samples[0].taken_at).total_seconds())
        for name, value, shown in SERIES:
            values = [value(sample) for sample in self.samples]
            known = [one for one in values if one is not None]
            if known:
                now = shown(values[-1]) if values[-1] is not None else "unknown"
                yield Chart(name=name, now=now, highest=shown(max(known)), span=span, values=values)


def _images(watch: Watch) -> float | None:
    return watch.steps.images_per_second if watch.steps is not None else None


def _steps(watch: Watch) -> float | None:
    seconds = watch.steps.step_seconds if watch.steps is not None else None
    return 1 / seconds if seconds else None


def _gigabytes(watch: Watch) -> float | None:
    return sum(row.gigabytes_per_second for row in watch.rows) if watch.ranks_recorded else None


SERIES: tuple[tuple[str, Callable[[Watch], float | None], Callable[[float], str]], ...] = (
    ("images/s", _images, human_number),
    ("steps/s", _steps, human_number),
    ("GB/s of a rank", _gigabytes, human_bandwidth),
    ("share of time in collectives", lambda watch: watch.share_of_time, lambda value: f"{human_share(value)} %"),
)


def render_watch_page(name: str, interval: float) -> tuple[str, str]:
    """The page, and the nonce of its style and script, which is new each time."""
    nonce = secrets.token_urlsafe(16)
    page = render_template(
        "watch.html.j2", folder=TEMPLATES, title=name, interval=interval, nonce=nonce, version=__version__
    )
    return page, nonce
