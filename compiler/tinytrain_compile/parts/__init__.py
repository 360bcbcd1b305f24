"""Parts of a generated project: a folder for each, with its checks, C, report rows and twin (ADR 49)."""
