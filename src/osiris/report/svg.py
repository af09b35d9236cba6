"""From matplotlib's SVG to one that can stand inside a page: small, themed by CSS variables, with ids of its own."""

from __future__ import annotations

import html
import re

from osiris.report.style import swaps

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
_HEAD = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_GLOBAL_STYLE = re.compile(r"\s*<defs>\s*<style[^>]*>.*?</style>\s*</defs>", re.DOTALL)
_ROOT = re.compile(r"<svg\b[^>]*?>", re.DOTALL)
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_PATH = re.compile(r'(\b(?:d|transform|x|y|points)=")([^"]*)(")')
_FONT = re.compile(r"font: ([^;\"]*?)([\d.]+)px [^;\"]+")
_VIEW = re.compile(r'viewBox="([-\d.e ]+)"')


def tidy(text: str, prefix: str) -> str:
    """One figure as a bare <svg>: no XML head, no page-wide style, short numbers, ids that begin with `prefix`."""
    text = _GLOBAL_STYLE.sub("", _METADATA.sub("", _HEAD.sub("", text)))
    view = _VIEW.search(text)
    assert view is not None, "matplotlib writes a viewBox"
    root = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{view[1]}" stroke-linejoin="round" stroke-linecap="butt">'
    )
    text = _ROOT.sub(root, text, count=1)
    text = _PATH.sub(lambda m: m[1] + _NUMBER.sub(_short, m[2]) + m[3], text)
    text = _FONT.sub(_font, text)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    text = re.sub(r' \bid="([^"]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r'(xlink:href="|href="|url\()#', rf"\1#{prefix}-", text)
    return re.sub(r"\n\s*", "\n", text).strip()


def _short(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")


def _font(match: re.Match[str]) -> str:
    """`font: bold 9px 'DejaVu Sans'` to a size, a weight and the page's own family (which is narrower, so it fits)."""
    weight = match[1].strip()
    bold = "; font-weight: 600" if "bold" in weight or re.search(r"[67]00", weight) else ""
    italic = "; font-style: italic" if "italic" in weight else ""
    return f"font-size: {match[2]}px{bold}{italic}; font-family: {FONT}"


def themed(text: str) -> str:
    """Colours that change with the theme become CSS variables, with the light colour as fallback."""
    text = text.replace(f"; font-family: {FONT}", "")
    for colour in swaps():
        text = text.replace(colour, f"var({variable(colour)})")
    return text


def variable(colour: str) -> str:
    return f"--c{colour.removeprefix('#')}"


def theme_rules(dark: bool) -> str:
    """CSS declarations of all variables, for one theme."""
    return "".join(f"{variable(light)}:{night if dark else light};" for light, night in swaps().items())


def size(text: str) -> tuple[float, float]:
    """(width, height) in points."""
    view = _VIEW.search(text)
    assert view is not None
    _, _, width, height = (float(part) for part in view[1].split())
    return width, height


def escape(text: str) -> str:
    return html.escape(text, quote=False)


def labelled(text: str, identifier: str, title: str, description: str) -> str:
    """With a name and a description for those who hear the page."""
    opening = f'role="img" aria-labelledby="{identifier}-t {identifier}-d" viewBox='
    named = (
        f'<title id="{identifier}-t">{html.escape(title)}</title>'
        f'<desc id="{identifier}-d">{html.escape(description)}</desc>'
    )
    text = text.replace("viewBox=", opening, 1)
    end = text.index(">") + 1
    return text[:end] + named + text[end:]


def placed(text: str, x: float, y: float) -> str:
    """As a nested <svg> at a place of a larger one."""
    width, height = size(text)
    inner = text.replace("viewBox=", f'x="{x:.1f}" y="{y:.1f}" width="{width:g}" height="{height:g}" viewBox=', 1)
    return re.sub(r' xmlns(:xlink)?="[^"]*"', "", inner)


def document(parts: list[str], width: float, height: float, title: str, description: str, ground: str) -> str:
    """A standalone file."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{width:g}pt" height="{height:g}pt" viewBox="0 0 {width:g} {height:g}">\n'
        f"<title>{html.escape(title)}</title><desc>{html.escape(description)}</desc>\n"
        f'<rect width="100%" height="100%" fill="{ground}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )
