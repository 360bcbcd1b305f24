"""The device on the desk: the generated C, built for the host and called from Python."""

from tinytrain_compile.twin.instance import Instance
from tinytrain_compile.twin.twin import Twin

__all__ = ["Instance", "Twin"]
