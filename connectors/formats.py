"""Which files are read and by what: names for formats, by extension and by first bytes."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

READING = 1
"""The version of the readers. Raise it when any of them changes what it returns for the same bytes: documents
that were read under a lower number are read again at the next ingest, though their files are unchanged."""


class Format(NamedTuple):
    """A format that is read: how it is called, and the function that reads it."""

    name: str
    extensions: frozenset[str]
    function: str
    """`module:name` below `epicrag.connectors`. From text: `f(text, encoding)`; from bytes: `f(data, limits)`.
    Both return `Parsed | Unread`."""
    takes: Literal["text", "bytes"]


def _format(name: str, extensions: str, function: str, takes: Literal["text", "bytes"]) -> Format:
    return Format(name, frozenset(extensions.split()), function, takes)


FORMATS = (
    _format("text", "txt text log", "text:parse_text", "text"),
    _format("markdown", "md markdown mdown mkd", "markdown:parse_markdown", "text"),
    _format("reStructuredText", "rst rest", "rst:parse_rst", "text"),
    _format("AsciiDoc", "adoc asciidoc asc", "asciidoc:parse_asciidoc", "text"),
    _format("Org mode", "org", "org:parse_org", "text"),
    _format("LaTeX", "tex ltx", "tex:parse_tex", "text"),
    _format("subtitles", "srt vtt", "subtitles:parse_subtitles", "text"),
    _format("html", "html htm xhtml", "html:parse_html", "text"),
    _format("notebook", "ipynb", "notebook:parse_notebook", "text"),
    _format("e-mail", "eml", "mail:parse_mail", "bytes"),
    _format("mailbox", "mbox", "mailbox_file:parse_mailbox", "bytes"),
    _format("EPUB", "epub", "epub:parse_epub", "bytes"),
    _format("XML", "xml nxml jats rss atom opml kml gpx", "xml_text:parse_xml", "text"),
    _format("pdf", "pdf", "pdf:parse_pdf", "bytes"),
    _format("image", "png jpg jpeg tif tiff bmp webp", "picture:parse_picture", "bytes"),
    _format("Word", "docx docm dotx", "docx:parse_docx", "bytes"),
    _format("PowerPoint", "pptx pptm ppsx", "pptx:parse_pptx", "bytes"),
    _format("Excel", "xlsx xlsm", "xlsx:parse_xlsx", "bytes"),
    _format("Excel 97", "xls", "xls:parse_xls", "bytes"),
    _format("OpenDocument text", "odt ott", "odt:parse_odt", "bytes"),
    _format("OpenDocument slides", "odp", "odt:parse_odp", "bytes"),
    _format("OpenDocument sheet", "ods", "ods:parse_ods", "bytes"),
    _format("Rich Text", "rtf", "rtf:parse_rtf", "bytes"),
    _format("Word 97", "doc dot", "doc:parse_doc", "bytes"),
    _format("PowerPoint 97", "ppt pps", "ppt:parse_ppt", "bytes"),
    _format("Outlook e-mail", "msg", "msg:parse_msg", "bytes"),
    _format("CSV", "csv", "csv_table:parse_csv", "text"),
    _format("TSV", "tsv tab", "csv_table:parse_tsv", "text"),
    _format("JSON", "json geojson", "json_records:parse_json", "text"),
    _format("JSON lines", "jsonl ndjson", "json_records:parse_json_lines", "text"),
)
"""Every format but source code, which is known by many names."""
_BY_EXTENSION = {extension: format for format in FORMATS for extension in format.extensions}
_CODE = Format("code", frozenset(), "code:parse_code", "text")

CODE_MEDIA = {
    "py": "text/x-python", "pyi": "text/x-python", "pyw": "text/x-python",
    "js": "text/javascript", "mjs": "text/javascript", "cjs": "text/javascript",
    "jsx": "text/javascript", "ts": "text/x-typescript", "tsx": "text/x-typescript",
    "mts": "text/x-typescript", "vue": "text/x-vue", "svelte": "text/x-svelte",
    "rs": "text/x-rust", "go": "text/x-go", "java": "text/x-java", "kt": "text/x-kotlin",
    "kts": "text/x-kotlin", "scala": "text/x-scala", "groovy": "text/x-groovy",
    "gradle": "text/x-groovy", "c": "text/x-c", "h": "text/x-c", "cc": "text/x-c++",
    "cpp": "text/x-c++", "cxx": "text/x-c++", "hh": "text/x-c++", "hpp": "text/x-c++",
    "hxx": "text/x-c++", "cu": "text/x-cuda", "cuh": "text/x-cuda", "m": "text/x-objective-c",
    "mm": "text/x-objective-c", "cs": "text/x-csharp", "fs": "text/x-fsharp", "vb": "text/x-vb",
    "swift": "text/x-swift", "dart": "text/x-dart", "zig": "text/x-zig", "nim": "text/x-nim",
    "d": "text/x-d", "rb": "text/x-ruby", "php": "text/x-php", "pl": "text/x-perl",
    "pm": "text/x-perl", "lua": "text/x-lua", "r": "text/x-r", "jl": "text/x-julia",
    "ex": "text/x-elixir", "exs": "text/x-elixir", "erl": "text/x-erlang", "hs": "text/x-haskell",
    "ml": "text/x-ocaml", "mli": "text/x-ocaml", "clj": "text/x-clojure", "el": "text/x-lisp",
    "lisp": "text/x-lisp", "scm": "text/x-scheme", "f90": "text/x-fortran", "f": "text/x-fortran",
    "pas": "text/x-pascal", "asm": "text/x-asm", "s": "text/x-asm", "sol": "text/x-solidity",
    "v": "text/x-verilog", "sv": "text/x-verilog", "vhd": "text/x-vhdl", "sh": "text/x-shellscript",
    "bash": "text/x-shellscript", "zsh": "text/x-shellscript", "fish": "text/x-shellscript",
    "ps1": "text/x-powershell", "bat": "text/x-bat", "cmd": "text/x-bat", "awk": "text/x-awk",
    "sql": "text/x-sql", "graphql": "text/x-graphql", "proto": "text/x-protobuf",
    "thrift": "text/x-thrift", "tf": "text/x-terraform", "hcl": "text/x-hcl",
    "cmake": "text/x-cmake", "mk": "text/x-makefile", "toml": "application/toml",
    "yaml": "application/yaml", "yml": "application/yaml", "ini": "text/x-ini", "cfg": "text/x-ini",
    "conf": "text/x-ini", "properties": "text/x-ini", "env": "text/x-ini", "css": "text/css",
    "scss": "text/x-scss", "sass": "text/x-sass", "less": "text/x-less", "diff": "text/x-diff",
    "patch": "text/x-diff", "jinja": "text/x-jinja", "j2": "text/x-jinja", "nix": "text/x-nix",
}  # fmt: skip

_BARE_TEXT = {
    "readme", "license", "licence", "copying", "notice", "authors", "contributors", "changelog",
    "changes", "news", "install", "todo", "history", "thanks", "version", "copyright",
}  # fmt: skip
_BARE_CODE = {
    "makefile": "text/x-makefile", "gnumakefile": "text/x-makefile",
    "dockerfile": "text/x-dockerfile", "containerfile": "text/x-dockerfile",
    "rakefile": "text/x-ruby", "gemfile": "text/x-ruby", "jenkinsfile": "text/x-groovy",
    "vagrantfile": "text/x-ruby", "procfile": "text/x-ini", "justfile": "text/x-makefile",
}  # fmt: skip

_LOCK_FILES = {
    "package-lock.json", "npm-shrinkwrap.json", "packages.lock.json", "pnpm-lock.yaml",
}  # fmt: skip

_NAMES = {
    "bib": "BibTeX", "rtf": "Rich Text", "docx": "Word",
    "doc": "Word 97", "odt": "OpenDocument text", "xlsx": "Excel", "xlsm": "Excel", "xls": "Excel 97",
    "ods": "OpenDocument sheet", "pptx": "PowerPoint", "ppt": "PowerPoint 97",
    "odp": "OpenDocument slides", "csv": "CSV", "tsv": "TSV", "json": "JSON", "jsonl": "JSON lines",
    "ndjson": "JSON lines", "xml": "XML", "eml": "e-mail", "msg": "Outlook e-mail", "mbox": "mailbox",
    "epub": "EPUB", "mobi": "e-book", "azw3": "e-book", "ipynb": "Jupyter notebook", "gif": "image",
    "svg": "image", "ico": "image",
    "heic": "image", "mp3": "sound", "wav": "sound", "ogg": "sound", "flac": "sound", "m4a": "sound",
    "mp4": "video", "mkv": "video", "avi": "video", "mov": "video", "webm": "video",
    "zip": "ZIP archive", "gz": "gzip archive", "tgz": "gzip archive", "bz2": "bzip2 archive",
    "xz": "xz archive", "7z": "7z archive", "rar": "RAR archive", "tar": "tar archive",
    "zst": "zstd archive", "exe": "program", "dll": "program library", "so": "program library",
    "o": "object file", "a": "program library", "pyc": "Python bytecode", "class": "Java bytecode",
    "jar": "Java archive", "whl": "Python wheel", "bin": "binary", "dat": "data", "db": "database",
    "sqlite": "SQLite database", "parquet": "Parquet", "arrow": "Arrow", "npy": "NumPy array",
    "npz": "NumPy archive", "pkl": "pickle", "safetensors": "model weights", "gguf": "model weights",
    "pt": "model weights", "onnx": "model", "ps": "PostScript", "eps": "PostScript", "djvu": "DjVu",
    "ttf": "font", "otf": "font", "woff": "font", "woff2": "font", "lock": "lock file", "map": "source map",
}  # fmt: skip

_MAGIC = (
    (b"PK\x03\x04", "a ZIP archive (as are docx, xlsx, epub)"),
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office file (doc, xls, ppt, msg)"),
    (b"{\\rtf", "Rich Text"),
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF87a", "a GIF image"),
    (b"GIF89a", "a GIF image"),
    (b"II*\x00", "a TIFF image"),
    (b"MM\x00*", "a TIFF image"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"\x7fELF", "a program"),
    (b"MZ\x90\x00", "a Windows program"),
    (b"\xca\xfe\xba\xbe", "Java bytecode"),
    (b"\x00asm", "WebAssembly"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"OggS\x00", "a sound file"),
    (b"ID3\x03", "a sound file"),
    (b"ID3\x04", "a sound file"),
    (b"fLaC", "a sound file"),
    (b"GGUF", "model weights"),
    (b"%!PS-Adobe", "PostScript"),
    (b"AT&TFORM", "a DjVu file"),
)


def extension_of(path: str) -> str:
    """The extension in lower case without its dot; "" where there is none."""
    return os.path.splitext(os.path.basename(path))[1][1:].lower()


def format_of(path: str) -> Format | None:
    """The format of a file of this name; None when no reader takes it."""
    extension, name = extension_of(path), os.path.basename(path).lower()
    if name in _LOCK_FILES:
        return None
    if extension in _BY_EXTENSION:
        return _BY_EXTENSION[extension]
    if extension in CODE_MEDIA or name in _BARE_CODE:
        return _CODE
    # README.Debian, LICENSE.MIT: what follows the dot is no format
    is_text = name.partition(".")[0] in _BARE_TEXT and extension not in _NAMES
    return _BY_EXTENSION["txt"] if is_text else None


def media_of(path: str) -> str:
    """The media type of a file of source code."""
    name = os.path.basename(path).lower()
    return CODE_MEDIA.get(extension_of(path)) or _BARE_CODE.get(name, "text/plain")


def unsupported_reason(path: str) -> str:
    """Say which format a file is in that no reader takes."""
    extension = extension_of(path)
    if os.path.basename(path).lower() in _LOCK_FILES:
        return "a lock file: written by a program, for itself, and long"
    if not extension:
        return "a file without an extension, and not a known name: its format is not guessed"
    name = _NAMES.get(extension)
    return f"{name} (.{extension}) is not supported" if name else f".{extension} is not supported"


def foreign_content(data: bytes) -> str | None:
    """Say what the first bytes belong to, when that is a format which is not text."""
    if b"%PDF-" in data[:16]:
        return "a PDF document"
    if data[:4] == b"RIFF" and data[8:12] in (b"WEBP", b"WAVE", b"AVI "):
        return "an image, sound or video"
    if data[4:8] == b"ftyp":
        return "a video or HEIC image"
    return next((name for magic, name in _MAGIC if data.startswith(magic)), None)
