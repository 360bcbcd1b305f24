"""What the user sees: terminal blocks, report.json, plan.json, report.html, and the generated reference pages.

Everything here is a pure function of a Summary; nothing is written or printed. Rows that only some builds have are in
`rows/`, and imported if a build has them.
"""
