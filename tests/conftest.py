"""One thread per test process: the tests run side by side, and results are compared bit for bit."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("ecpp", deadline=None, max_examples=40)
settings.load_profile("ecpp")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)
