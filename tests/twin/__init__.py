"""Tests of the device on the desk, and of what is measured with it."""
