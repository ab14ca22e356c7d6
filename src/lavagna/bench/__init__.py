"""How fast the forms are, as ratios to what the machine's own matrix product would need for the same arithmetic."""

from lavagna.bench.decoding import decoding_rows
from lavagna.bench.forms import form_rows

__all__ = ["decoding_rows", "form_rows"]
