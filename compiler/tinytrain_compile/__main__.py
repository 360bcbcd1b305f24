"""python -m tinytrain_compile."""

from tinytrain_compile.cli.start import main

main()
