"""Messages are whole lines, also in a log. Progress in a notebook: rich's widget where ipywidgets is installed, plain
lines where it is not."""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from rich.console import Console

from osiris import console


@pytest.fixture
def jupyter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "messages", Console(force_jupyter=True))
    monkeypatch.setitem(sys.modules, "ipywidgets", None)


def test_lines_without_widgets(jupyter: None, capsys: pytest.CaptureFixture[str]) -> None:
    display = console.Display()
    display.show("training", 0.5, "half", line=True)
    display.close()
    assert capsys.readouterr().err == "training: half\n"


def test_a_widget_with_them(jupyter: None, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []

    class Output:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

        def clear_output(self, wait: bool) -> None: ...

    for name, content in {"IPython": {}, "IPython.display": {"display": shown.append}, "ipywidgets": {}}.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys.modules["ipywidgets"], "Output", Output, raising=False)
    display = console.Display()
    display.show("training", 0.5, "half")
    display.close()
    assert any(isinstance(one, Output) for one in shown) and any("training" in str(vars(one)) for one in shown[1:])


@pytest.mark.parametrize("tell", [console.notice, console.warn, console.say])
def test_no_line_breaks_are_added(
    tell: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the output is no terminal, rich takes it for one of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    text = "give the same command again: osiris observe /a/long/path/to/a/state /another/path/to/a/folder/of/photos [1]"
    tell(text)
    written = capsys.readouterr()
    assert (written.out + written.err).removeprefix("note: ").removeprefix("warning: ") == text + "\n"
