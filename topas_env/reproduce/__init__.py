"""The paper's tables and figures made again in the simulator, beside the paper's numbers."""

from topas_env.report._document import write_document
from topas_env.reproduce._cases import SECTIONS, Case, Setting, section_cases
from topas_env.reproduce._findings import document
from topas_env.reproduce._paper import CHOICES
from topas_env.reproduce._run import run_cases
from topas_env.reproduce._slice import slice_values

__all__ = [
    "CHOICES",
    "SECTIONS",
    "Case",
    "Setting",
    "document",
    "run_cases",
    "section_cases",
    "slice_values",
    "write_document",
]
