"""What this example trains with: chosen on the development speakers (results.py), reported on others."""

OPTIONS = ("--quant", "int8", "--update", "all", "--lr", "0.003", "--epochs", "12")
"""Of tinytrain-compile."""
EPOCHS, RATE, REPLAYED = 12, 0.003, 100
