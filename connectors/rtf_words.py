"""The vocabulary of Rich Text: which words are characters, which open what is not text, code pages."""

from __future__ import annotations

import codecs

SIGNS = {
    "tab": "\t",
    "line": "\n",
    "emdash": "—",
    "endash": "–",
    "lquote": "‘",
    "rquote": "’",
    "ldblquote": "“",
    "rdblquote": "”",
    "bullet": "•",
    "emspace": " ",
    "enspace": " ",
    "qmspace": " ",
    "zwj": "\u200d",
    "zwnj": "\u200c",
}

LEFT_OUT = frozenset(
    [
        "pict",
        "colortbl",
        "fldinst",
        "object",
        "sp",
        "shprslt",
        "nonshppict",
        "shppict",
        "xe",
        "tc",
        "rxe",
        "bkmkstart",
        "bkmkend",
        "revtbl",
        "listtable",
        "listoverridetable",
        "rsidtbl",
        "generator",
        "themedata",
        "colorschememapping",
        "datastore",
        "latentstyles",
        "ftnsep",
        "ftnsepc",
        "ftncn",
        "aftnsep",
        "aftnsepc",
        "aftncn",
        "nonesttables",
        "nesttableprops",
        "pnseclvl",
        "template",
        "operator",
        "comment",
        "doccomm",
        "manager",
        "company",
        "category",
        "hlinkbase",
        "filetbl",
        "private",
        "datafield",
        "formfield",
        "objdata",
        "objclass",
        "atnid",
        "atnref",
        "atndate",
        "atnparent",
        "atrfstart",
        "atrfend",
        "pntxta",
        "pntxtb",
        "pn",
        "xmlnstbl",
        "wgrffmtfilter",
        "mmathPr",
        "mmathPict",
        "keycode",
        "panose",
        "falt",
        "fontemb",
        "fontfile",
        "background",
        "passwordhash",
        "protusertbl",
    ]
) - {"object"}
"""Words whose group holds no text of the document."""

ENTERED = frozenset(
    [
        "annotation",
        "atnauthor",
        "shpinst",
        "ud",
        "do",
        "dptxbxtext",
        "shptxt",
        "moMath",
        "moMathPara",
        "mr",
        "listtext",
        "pntext",
        "footnote",
        "fldrslt",
        "shpgrp",
        "nestcell",
        "nestrow",
        "mf",
        "mnum",
        "mden",
        "me",
        "msSup",
        "msup",
        "msSub",
        "msub",
        "msSubSup",
        "mrad",
        "mdeg",
        "mnary",
        "md",
        "mfName",
        "mfunc",
        "mlim",
        "mlimLow",
        "mlimUpp",
        "mm",
        "mmr",
        "meqArr",
        "mbox",
        "mborderBox",
        "macc",
        "mbar",
        "mgroupChr",
        "mphant",
        "msPre",
        "soutlvl",
    ]
)
"""Words behind a star, which old readers skip, that hold text all the same."""

MARGINS = frozenset(
    ["header", "headerl", "headerr", "headerf", "footer", "footerl", "footerr", "footerf"]
)

CHARSETS = {
    2: "symbol",
    77: "mac_roman",
    128: "cp932",
    129: "cp949",
    130: "johab",
    134: "gb18030",
    136: "cp950",
    161: "cp1253",
    162: "cp1254",
    163: "cp1258",
    177: "cp1255",
    178: "cp1256",
    186: "cp1257",
    204: "cp1251",
    222: "cp874",
    238: "cp1250",
    254: "cp437",
    255: "cp850",
}
"""Code pages of `\\fcharset`; what is not here is the code page of the file."""

_PAGES = {10000: "mac_roman", 65001: "utf-8", 936: "gb18030", 1361: "johab", 42: "symbol"}


def codec_of(page: int) -> str:
    """The codec of a Windows code page; that of Western Europe where there is none of this number."""
    name = _PAGES.get(page, f"cp{page}")
    if name == "symbol":
        return name
    try:
        return codecs.lookup(name).name
    except LookupError:
        return "cp1252"
