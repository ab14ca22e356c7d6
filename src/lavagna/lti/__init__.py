"""Linear systems that do not change in time."""
