"""Quantised files: QDQ and QOperator forms, their scales, and the real numbers that they stand for."""
