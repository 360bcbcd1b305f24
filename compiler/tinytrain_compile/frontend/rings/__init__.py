"""Networks that keep the last rows of a sequence from call to call, made into the network of one window."""
