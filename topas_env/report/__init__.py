"""What a person looks at after a comparison: one HTML page, and a trace for Perfetto."""

from topas_env.report._page import headlines, render, write_report
from topas_env.report._perfetto import write_trace

__all__ = ["headlines", "render", "write_report", "write_trace"]
