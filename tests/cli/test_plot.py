"""`lavagna plot`."""

from lavagna import plots


def test_without_a_name_all_figures_are_listed(table):
    assert [row["figure"] for row in table("plot")] == plots.names()


def test_a_figure_is_drawn_light_and_dark(table, tmp_path):
    rows = table("plot", "forms", "--out", tmp_path)
    assert {row["theme"] for row in rows} == {"light", "dark"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["forms-dark.png", "forms-light.png"]


def test_the_state_of_a_run_is_drawn(table, run, tmp_path):
    (row,) = table("plot", "state", "--run", run, "--text", "hello", "--theme", "light", "--out", tmp_path)
    assert (tmp_path / "state-light.png").read_bytes().startswith(b"\x89PNG")
    assert row["path"] == str(tmp_path / "state-light.png")


def test_all_draws_what_needs_no_model(table, tmp_path, monkeypatch):
    monkeypatch.setattr("lavagna.plots.draw", lambda name, *, theme, out, **options: out)
    rows = table("plot", "all", "--theme", "light", "--out", tmp_path)
    assert [row["figure"] for row in rows] == [name for name in plots.names() if name != "state"]


def test_figures_that_cannot_be_are_refused_and_nothing_is_drawn(refused, tmp_path):
    out = ["--out", tmp_path / "figures"]
    assert "zoo" in refused("plot", "nonsense", *out)
    assert "--run" in refused("plot", "state", *out)
    assert "light" in refused("plot", "zoo", "--theme", "grey", *out)
    assert ".png" in refused("plot", "zoo", "--format", "gif", *out)
    for words in (["--run", "runs/nope"], ["--text", "x"], ["--block", 0], ["--head", 1]):
        assert f"plot: {words[0]} is for the figure state" in refused("plot", "kernel", *words, *out)
    assert not list(tmp_path.iterdir())
