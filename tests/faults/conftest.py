import platform

import pytest


@pytest.fixture(autouse=True)
def one_core(monkeypatch):
    """OpenBLAS's kernels stay what they are: where a process cannot start itself again for better ones it goes on, to other bytes."""
    if platform.machine() == "x86_64":
        monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
