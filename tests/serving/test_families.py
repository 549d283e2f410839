"""The README's table of model families is what its script makes."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_readme_has_the_table_that_the_checkpoints_give(tiny_engine, families):
    script = runpy.run_path(str(ROOT / "benchmarks" / "families.py"))
    named = [name for _, names in script["ROWS"] for name in names]
    assert sorted(named) == sorted((*families["accepted"], *families["refused"]))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert script["replaced"](readme, script["table"](tiny_engine)) == readme
