"""Kernels for CPUs, in C++ without headers of torch or Python, built when the package is installed."""
