"""Targets: data on a core, its machine in QEMU, and real boards."""
