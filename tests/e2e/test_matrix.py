"""The table of docs/converting.md is what `convert` does."""
import importlib.util

from conftest import ROOT


def test_the_table_in_the_docs_is_what_convert_does():
    spec = importlib.util.spec_from_file_location("matrix", ROOT / "tests/interop/matrix.py")
    matrix = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(matrix)
    assert matrix.shown((ROOT / "docs/converting.md").read_text()) == matrix.table()
