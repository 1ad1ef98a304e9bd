"""The index as an HTML page, with the throughput of each run over its steps."""

import os
import shlex
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.progress import Progress
from hvscale.core.run_folder import RunFolder, write_text
from hvscale.core.units import human_bytes, human_number
from hvscale.profiling.analyze.steps import read_step_log
from hvscale.report.page import render_page
from hvscale.studies.run_index.entry import RUN, UNREADABLE, RunEntry, has_step_log
from hvscale.studies.run_index.index import RunIndex
from hvscale.studies.run_index.table import COLUMNS, LEFT, cells

PROBLEMS_SHOWN = 8
STEP_LOG_BYTES = 64 << 20  # a quarter of a million steps; a longer steps.jsonl gets no sparkline
POINTS = 60  # of a sparkline; more steps are averaged
WIDTH, HEIGHT, MARGIN = 100, 24, 2  # of a sparkline, in pixels


class Sparkline(NamedTuple):
    """`points`: of an SVG polyline. `text`: what it shows, in words."""

    points: str
    text: str


class PageRow(NamedTuple):
    """A row of the page.

    `cells`: as in the terminal; `values`: what the page sorts them by, None if unknown. `href`: of
    the report, relative to the page; without one, `make_page` is the command that writes it, if
    there is one.
    """

    cells: list[str]
    values: list[str | float | None]
    href: str | None
    make_page: str | None
    sparkline: Sparkline | None


def write_index_page(index: RunIndex, path: Path) -> None:
    """Write the page; raises RequestError if `path` cannot be written."""
    rows = []
    with Progress("writing the page", len(index.entries)) as progress:
        for entry in index.entries:
            rows.append(_row(index, entry, path.parent))
            progress.advance(1)
    html = render_page(
        "runs.html.j2",
        {},
        title=f"Runs in {index.folder}",
        what=f"{len(rows)} runs and studies, {human_bytes(sum(entry.bytes for entry in index.entries))}.",
        facts=[],
        warnings=problems(index),
        columns=COLUMNS,
        text_columns=LEFT,
        rows=rows,
        width=WIDTH,
        height=HEIGHT,
    )
    try:
        write_text(path, html)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error


def problems(index: RunIndex) -> list[str]:
    """What could not be read: the first texts, and how many more there are."""
    found = [f"{entry.name}: {entry.problem}" for entry in index.entries if entry.problem is not None]
    more = len(found) - PROBLEMS_SHOWN
    return [*found[:PROBLEMS_SHOWN], *([f"and {more} more, which --json shows"] if more > 0 else [])]


def _row(index: RunIndex, entry: RunEntry, folder: Path) -> PageRow:
    run = index.path / entry.name
    href = make_page = None
    if entry.page is not None:
        relative = os.path.relpath(run.resolve() / entry.page, folder.resolve())
        href = quote(relative, errors="surrogateescape")
    elif entry.kind == RUN and entry.state != UNREADABLE and has_profile(RunFolder(run), entry):
        make_page = f"hvscale report {shlex.quote(str(run))}"
    numbers: dict[str, float | None] = {
        "np": entry.np,
        "images/s": entry.images_per_second,
        "comm. %": entry.communication_share,
        "age": entry.age_seconds,
        "size": entry.bytes,
    }
    texts = cells(entry)
    values = [numbers.get(name, text) for name, text in zip(COLUMNS, texts, strict=True)]
    return PageRow(texts, values, href, make_page, _sparkline(RunFolder(run)) if entry.kind == RUN else None)


def has_profile(run: RunFolder, entry: RunEntry) -> bool:
    """Whether `hvscale report` finds messages; it may still fail for a damaged profile."""
    return bool(entry.communication_share) or run.timeline.is_file() or any(run.hvprof.glob("nccl-*.hvn"))


def _sparkline(run: RunFolder) -> Sparkline | None:
    """The throughput of a run over its steps; None without two steps that say their images."""
    if not has_step_log(run, STEP_LOG_BYTES):
        return None
    try:
        log = read_step_log(run)
    except RequestError:
        return None
    if log is None or np.count_nonzero(np.isfinite(log.images)) < 2:
        return None
    has_images = np.isfinite(log.images)
    return draw_sparkline(log.images[has_images], log.seconds[has_images])


def draw_sparkline(images: NDArray[np.float64], seconds: NDArray[np.float64]) -> Sparkline:
    """A sparkline from 0 to the highest throughput of at least two steps: arrays (steps,)."""
    starts = np.unique(np.linspace(0, len(images), min(POINTS, len(images)), endpoint=False).astype(int))
    speeds = np.add.reduceat(images, starts) / np.add.reduceat(seconds, starts)
    x = np.linspace(MARGIN, WIDTH - MARGIN, len(speeds))
    y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * speeds / (speeds.max() or 1)
    points = " ".join(f"{left:.1f},{top:.1f}" for left, top in zip(x, y, strict=True))
    low, high = human_number(float(speeds.min())), human_number(float(speeds.max()))
    return Sparkline(points, f"{len(images)} steps, {low} to {high} images/s")
