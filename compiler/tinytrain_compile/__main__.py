"""python -m tinytrain_compile."""

from tinytrain_compile.start import main

main()
