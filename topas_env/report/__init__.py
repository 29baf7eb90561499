"""What a person looks at after a comparison: an HTML page, the page of a suite, and a trace for Perfetto."""

from topas_env.report._document import write_document, write_markdown
from topas_env.report._page import headlines, render, write_report
from topas_env.report._perfetto import write_trace
from topas_env.report._suite_pages import suite_document

__all__ = [
    "headlines",
    "render",
    "suite_document",
    "write_document",
    "write_markdown",
    "write_report",
    "write_trace",
]
