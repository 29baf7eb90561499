"""The engine tests need an environment with SGLang: `make engine-slice` builds it and runs them (docs/bridge.md)."""

import importlib.util

import pytest

from engine.engine_kit import FULL

HAS_ENGINE = importlib.util.find_spec("sglang") is not None


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("engine") is None:
            continue
        if not HAS_ENGINE:
            item.add_marker(pytest.mark.skip(reason="SGLang is not installed here: make engine-slice"))
        elif item.get_closest_marker("slow") is not None and not FULL:
            item.add_marker(pytest.mark.skip(reason="part of make engine-full"))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    from topas_bridge.testing import make_tiny_checkpoint

    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
