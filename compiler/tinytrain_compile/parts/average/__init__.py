"""The mean of trained weights over several states (`--runtime average`)."""
