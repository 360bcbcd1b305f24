"""Lowering of every distinct node to one C function through TVM. The only importer of tvm; import it late (2-4 s)."""

from tinytrain_compile.lower.lower import LowerOptions, lower_nodes
from tinytrain_compile.lower.share import share_kernels

__all__ = ["LowerOptions", "lower_nodes", "share_kernels"]
