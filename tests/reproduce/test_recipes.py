import pytest

from osiris.errors import UserError
from osiris.reproduce import recipes


def test_every_table_and_figure_has_a_recipe():
    tables = {f"table{number}" for number in range(2, 9)}
    figures = {f"fig{number}" for number in range(2, 12)} | {"fig3a", "fig3b"}
    assert set(recipes.RECIPES) == tables | figures


@pytest.mark.parametrize("name", ["table2", "Table 2", "tab2", "TABLE-2"])
def test_names_are_forgiving(name: str):
    assert recipes.find_recipe(name) is recipes.RECIPES["table2"]


def test_figures_by_several_names_and_unknown_ones_refused():
    assert recipes.find_recipe("figure 3a") is recipes.RECIPES["fig3a"]
    with pytest.raises(UserError, match="fig3a"):
        recipes.find_recipe("fig3c")


def test_a_whole_figure_shows_what_its_panels_show():
    whole, *panels = (recipes.RECIPES[name] for name in ("fig3", "fig3a", "fig3b"))
    assert whole.shows == panels[0].shows + panels[1].shows
    assert set(whole.methods) == set(panels[0].methods) | set(panels[1].methods) and whole.curves and whole.tracked


def test_runs_are_named_apart_and_shared_where_equal():
    runs = recipes.planned_runs(recipes.RECIPES["fig2"], "fast", (0, 1))
    assert len(runs) == 4 * 2 * 2 == len({run.name for run in runs})
    assert [run.seed for run in runs] == [0] * 8 + [1] * 8
    two, six = (recipes.planned_runs(recipes.RECIPES[name], "fast", (0,)) for name in ("table2", "table6"))
    assert [run.name for run in two] == [run.name for run in six]


def test_curves_and_tracking_make_other_runs():
    plain = recipes.planned_runs(recipes.RECIPES["table4"], "fast", (0,))
    curved = recipes.planned_runs(recipes.RECIPES["fig3a"], "fast", (0,))
    tracked = recipes.planned_runs(recipes.RECIPES["fig3b"], "fast", (0,))
    names = [{run.name for run in runs if run.method == "osiris-d"} for runs in (plain, curved, tracked)]
    assert len(set.union(*names)) == 3
    assert "--evaluate-every" in curved[0].arguments and "--track-overfitting" in tracked[0].arguments
    assert "--evaluate-every" not in plain[0].arguments


def test_another_benchmark_can_take_the_place():
    runs = recipes.planned_runs(recipes.RECIPES["table2"], "smoke", (0,), ["tinyworld"])
    assert {run.benchmark for run in runs} == {"tinyworld"} and len(runs) == 12
