"""Tests of examples/, and of the pages that quote commands and their output."""
