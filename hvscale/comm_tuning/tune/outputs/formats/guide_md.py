"""guide.md: the guide as Markdown."""

import re

from hvscale.comm_tuning.tune.outputs.guide import FILTERS, TEMPLATES, Guide
from hvscale.comm_tuning.tune.outputs.output_format import OutputFormat, TunedJob, register
from hvscale.report.page import render_template

SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")
ENTITY = re.compile(r"&(?=[A-Za-z#])")


def plain(text: str) -> str:
    """Escape text for Markdown, on one line."""
    return ENTITY.sub("&amp;", SPECIAL.sub(r"\\\1", " ".join(text.split())))


def code(text: str) -> str:
    """A code block of the text, whatever backticks it contains."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{text}\n{fence}"


def text(tuned: TunedJob) -> str:
    filters = {**FILTERS, "plain": plain, "code": code}
    return render_template(
        "guide.md.j2", folder=TEMPLATES, filters=filters, guide=Guide(tuned), document=tuned.document
    )


register(OutputFormat(file="guide.md", what="this guide", text=text))
