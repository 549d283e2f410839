"""Where there is no GPU, Triton's kernels run in its interpreter: that is decided when they are defined."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the Triton kernels run: the GPU, or the CPU in the interpreter."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
