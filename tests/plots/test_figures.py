"""The figures: files that are whole, two themes, nothing that overlaps, errors that help."""

from itertools import combinations

import pytest
from matplotlib import rc_context
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from lavagna import plots
from lavagna.data import Tokenizer
from lavagna.plots import eigenvalues, faces, forms, hippo, kernel, recall, state, zoo
from lavagna.plots.sheet import sheet
from lavagna.plots.theme import THEMES
from plots.stand_in import StandIn

OPTIONS = {"recall": {"trials": 4}, "state": {"model": StandIn()}}
LONG = "for the longest text that anybody would put under a picture of one memory, $x_1$ " * 3
WORDS = Tokenizer.train([LONG], vocab_size=400)
DRAWINGS = {
    "zoo": lambda theme: zoo.figure(theme),
    "forms": lambda theme: forms.figure(theme),
    "recall": lambda theme: recall.figure(theme, trials=4),
    "hippo": lambda theme: hippo.figure(theme),
    "eigenvalues": lambda theme: eigenvalues.figure(theme),
    "faces": lambda theme: faces.figure(theme),
    "kernel": lambda theme: kernel.figure(theme),
    "state": lambda theme: state.figure(theme, model=StandIn()),
    "state of one token": lambda theme: state.figure(theme, model=StandIn(), text="a"),
    "state of a long text": lambda theme: state.figure(theme, model=StandIn(), text=LONG),
    "state of long tokens": lambda theme: state.figure(theme, model=StandIn(), tokenizer=WORDS, text=LONG[:83]),
}


def texts(figure):
    """Every text that is drawn, with the box of pixels it takes."""
    renderer = figure.canvas.get_renderer()
    found = list(figure.texts)
    for axes in figure.axes:
        found += axes.texts
        if axes.axison:
            found += [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label]
            ticks = [tick for axis in (axes.xaxis, axes.yaxis) for tick in axis._update_ticks()]
            found += [label for tick in ticks for label in (tick.label1, tick.label2) if label.get_visible()]
    return [(text, text.get_window_extent(renderer)) for text in found if text.get_text().strip()]


def cut_off(figure) -> list[str]:
    """Texts that reach beyond the sheet."""
    width, height = figure.canvas.get_width_height()
    return [
        text.get_text() for text, box in texts(figure) if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height
    ]


def overlapping(figure) -> list[tuple[str, str]]:
    """Pairs of texts that share more than a pixel's rim."""
    pairs = combinations(texts(figure), 2)
    return [(a.get_text(), b.get_text()) for (a, x), (b, y) in pairs if x.padded(-1).overlaps(y.padded(-1))]


@pytest.mark.parametrize("name", DRAWINGS)
def test_no_text_is_cut_off_or_lies_on_another(name):
    theme = THEMES["light"]
    with rc_context(theme.style()):
        figure = DRAWINGS[name](theme)
        figure.canvas.draw()
        assert len(texts(figure)) > 5
        assert not cut_off(figure) and not overlapping(figure)


def test_text_that_is_cut_off_or_lies_on_another_is_found():
    figure = sheet(4.0, 2.0, "a headline", "a reading")
    figure.canvas.draw()
    assert not cut_off(figure) and not overlapping(figure)
    figure.text(0.95, 0.5, "beyond the edge")
    figure.text(0.1, 0.82, "on the headline")
    assert cut_off(figure) == ["beyond the edge"]
    assert ("a headline", "on the headline") in overlapping(figure)


@pytest.mark.parametrize("name", plots.names())
def test_both_themes_are_drawn_on_their_own_ground(name, tmp_path):
    corners = {}
    for theme in THEMES:
        path = plots.draw(name, theme=theme, out=tmp_path / "new" / f"{name}-{theme}.png", **OPTIONS.get(name, {}))
        corners[theme] = imread(path)[0, 0, :3]
        assert corners[theme] == pytest.approx(to_rgb(THEMES[theme].ground), abs=0.01)
    assert corners["light"].min() > 0.9 and corners["dark"].max() < 0.2


@pytest.mark.parametrize("theme", THEMES.values(), ids=list(THEMES))
def test_ink_and_both_hues_stand_out_from_the_ground(theme):
    def luminance(color: str) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    for color in (theme.ink, theme.quiet, theme.blue, theme.orange):
        brighter, darker = sorted((luminance(color), luminance(theme.ground)), reverse=True)
        assert (brighter + 0.05) / (darker + 0.05) > 4.5


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_suffix_says_the_format_and_a_second_drawing_is_the_same_file(suffix, tmp_path):
    path = plots.draw("forms", out=tmp_path / f"forms.{suffix}")
    before = path.read_bytes()
    assert plots.draw("forms", out=path).read_bytes() == before
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")
    assert [file.name for file in tmp_path.iterdir()] == [f"forms.{suffix}"]


def test_a_drawing_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = plots.draw("forms", out=tmp_path / "forms.png")
    before = path.read_bytes()
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, file, **options: file.write(b"half") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        plots.draw("forms", theme="dark", out=path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("zebra", {}, "'zebra'.*zoo, recall, forms, state"),
        ("zoo", {"theme": "sepia"}, "light, dark.*'sepia'"),
        ("zoo", {"out": "zoo.bmp"}, r"\.png, \.svg, \.pdf.*zoo\.bmp"),
        ("state", {}, "a model is needed"),
        ("state", {"model": StandIn(), "text": ""}, "text is empty"),
        ("state", {"model": StandIn(), "block": 1}, "block must be from 0 to 0.*1"),
        ("state", {"model": StandIn(), "head": -1}, "head must be from 0 to 1.*-1"),
        ("state", {"model": StandIn("window")}, "stand_in, which keeps no matrix.*none"),
    ],
)
def test_bad_requests_get_one_line_that_says_what_can_be(name, options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=said) as caught:
        plots.draw(name, **{"out": "figure.png", **options})
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_an_option_of_another_figure_is_refused(tmp_path):
    with pytest.raises(TypeError, match="trials"):
        plots.draw("zoo", out=tmp_path / "zoo.png", trials=3)


def test_drawing_leaves_the_settings_of_matplotlib_alone(tmp_path):
    from matplotlib import rcParams

    before = dict(rcParams)
    plots.draw("forms", theme="dark", out=tmp_path / "forms.png")
    assert dict(rcParams) == before


@pytest.mark.parametrize("name", plots.names())
def test_a_figure_is_described_in_one_sentence(name):
    assert plots.describe(name).endswith(".")
