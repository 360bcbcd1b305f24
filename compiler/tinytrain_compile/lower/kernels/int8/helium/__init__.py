"""Integer kernels on vectors, for cores with Helium (mve_int)."""
