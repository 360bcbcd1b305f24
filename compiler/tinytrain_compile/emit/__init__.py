"""Writing of the C project: API, planned call sequence, kernels, weights, build file. Text only; nothing runs here."""
