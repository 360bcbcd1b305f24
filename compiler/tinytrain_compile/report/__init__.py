"""What the user sees: terminal blocks, report.json, plan.json, report.html, and the generated reference pages.

Imports ir, ops and errors only. Everything here is a pure function of a Summary; nothing is written or printed.
"""

from tinytrain_compile.report.analysis import work_of
from tinytrain_compile.report.choice import milliseconds, reason_lines, too_slow_text
from tinytrain_compile.report.data import batch_text, plan_json, report_json
from tinytrain_compile.report.layout import styled
from tinytrain_compile.report.learning import finding_html, finding_lines, finding_toml, score_text
from tinytrain_compile.report.pages.html import report_html
from tinytrain_compile.report.pareto import PARETO_CSV, pareto_csv, pareto_lines
from tinytrain_compile.report.reference import errors_markdown, ops_markdown, ops_text
from tinytrain_compile.report.rows.kernels import KernelWork, kernel_lines, kernel_work
from tinytrain_compile.report.rows.low_rank import low_rank_lines
from tinytrain_compile.report.rows.ram import ram_text
from tinytrain_compile.report.steps import step_lines
from tinytrain_compile.report.text import does_not_fit_text, success_text

__all__ = [
    "PARETO_CSV",
    "KernelWork",
    "batch_text",
    "does_not_fit_text",
    "errors_markdown",
    "finding_html",
    "finding_lines",
    "finding_toml",
    "kernel_lines",
    "kernel_work",
    "low_rank_lines",
    "milliseconds",
    "ops_markdown",
    "ops_text",
    "pareto_csv",
    "pareto_lines",
    "plan_json",
    "ram_text",
    "reason_lines",
    "report_html",
    "report_json",
    "score_text",
    "step_lines",
    "styled",
    "success_text",
    "too_slow_text",
    "work_of",
]
