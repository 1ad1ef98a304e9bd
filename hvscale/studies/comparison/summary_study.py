"""Measures a comparison that has a table and a page of its own."""

from typing import TypeVar

from hvscale.studies.comparison.study import ComparisonStudy
from hvscale.studies.comparison.summary import SummaryDocument

Document = TypeVar("Document", bound=SummaryDocument)


class SummaryStudy(ComparisonStudy[Document]):
    """One comparison that has a table and a page of its own."""

    def html(self) -> str:
        from hvscale.studies.comparison.page import page

        return page(self.document)
