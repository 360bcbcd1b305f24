"""python -m tinytrain_compile."""

from tinytrain_compile.cli import main

main()
