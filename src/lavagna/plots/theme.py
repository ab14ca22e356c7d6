"""One look for every figure, on paper and on the blackboard.

Two hues that every kind of color vision tells apart, blue and orange, carry all meaning; strength runs from the ground
to the blue. Figures are built on `matplotlib.figure.Figure`, never on pyplot, so that drawing leaves no global state.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Theme:
    """Colors by what they are for: ground and ink, quiet ink, lines of the frame, the two hues, and a tint of each."""

    name: str
    ground: str
    ink: str
    quiet: str
    frame: str
    blue: str
    orange: str
    blue_tint: str
    orange_tint: str

    def style(self) -> Any:
        """The matplotlib settings of this theme, for `matplotlib.rc_context`."""
        return {
            "figure.facecolor": self.ground,
            "savefig.facecolor": self.ground,
            "axes.facecolor": self.ground,
            "axes.edgecolor": self.quiet,
            "axes.labelcolor": self.ink,
            "axes.titlecolor": self.ink,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": False,
            "grid.color": self.frame,
            "text.color": self.ink,
            "xtick.color": self.quiet,
            "ytick.color": self.quiet,
            "xtick.labelcolor": self.ink,
            "ytick.labelcolor": self.ink,
            "font.family": "DejaVu Sans",
            "font.size": 10,
            "mathtext.fontset": "dejavusans",
            "svg.hashsalt": "lavagna",
        }

    def strength(self) -> Any:
        """A color map from nothing (the ground) to one (blue)."""
        from matplotlib.colors import LinearSegmentedColormap

        return LinearSegmentedColormap.from_list("strength", [self.ground, self.blue_tint, self.blue])

    def signed(self) -> Any:
        """A color map from minus (orange) over nothing (the ground) to plus (blue)."""
        from matplotlib.colors import LinearSegmentedColormap

        stops = [self.orange, self.orange_tint, self.ground, self.blue_tint, self.blue]
        return LinearSegmentedColormap.from_list("signed", stops)


THEMES = {
    "light": Theme(
        name="light",
        ground="#ffffff",
        ink="#1c2430",
        quiet="#66707d",
        frame="#dfe3e8",
        blue="#08599c",
        orange="#c8500a",
        blue_tint="#9cc6e8",
        orange_tint="#f3b98f",
    ),
    "dark": Theme(
        name="dark",
        ground="#17201e",
        ink="#eef2ec",
        quiet="#a3aea9",
        frame="#2b3633",
        blue="#8fd0ff",
        orange="#ffb26b",
        blue_tint="#4283aa",
        orange_tint="#9c622f",
    ),
}
