"""A device that keeps a journal, in QEMU or on the host: the program, and how it is run."""
