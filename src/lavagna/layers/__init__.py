"""Architectures: one file each, by name in the registry."""
