"""Inference on a stream: new rows in, rings of the rows before them (`--listen on`)."""
