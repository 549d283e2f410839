"""Styles inherit, and each is looked at once."""

from __future__ import annotations

import time

from epicrag.connectors.docx_styles import Styles, W


def styles(nodes: str) -> Styles:
    import lxml.etree

    return Styles(lxml.etree.fromstring(f'<w:styles xmlns:w="{W[1:-1]}">{nodes}</w:styles>'))


def style(name: str, based_on: str, inner: str = "") -> str:
    return f'<w:style w:styleId="{name}"><w:basedOn w:val="{based_on}"/>{inner}</w:style>'


def test_circle_of_styles_ends():
    found = styles(style("a", "b") + style("b", "a", "<w:rPr><w:vanish/></w:rPr>"))
    assert found.is_hidden("a")
    assert found.level("a") is None
    assert found.number(None) is None


def test_long_chain_of_styles_is_walked_once():
    chain = "".join(style(f"s{at}", f"s{at - 1}") for at in range(1, 20_000))
    top = style("s0", "", '<w:pPr><w:outlineLvl w:val="1"/></w:pPr>')
    found = styles(top + chain)
    start = time.process_time()
    for at in range(20_000):
        name = f"s{19_999 - at // 2}"
        assert (found.level(name), found.number(name), found.is_hidden(name)) == (2, None, False)
    assert time.process_time() - start < 20
