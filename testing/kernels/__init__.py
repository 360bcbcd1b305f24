"""Runs of kernels: random cases on the host under sanitisers, on boards in QEMU, and the ledger of instructions."""
