"""Verification: the generated C runs on the host and under QEMU, and agrees. The only part that starts processes."""
