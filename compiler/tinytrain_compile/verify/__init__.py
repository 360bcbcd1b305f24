"""Verification that the generated C agrees on the host and under QEMU. The only part that starts processes."""
