"""Targets: what the compiler knows about a core, its board in QEMU, and boards that people have."""
