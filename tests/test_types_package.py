"""The package's front: public names, what its import loads, and the registration."""

import json
import subprocess
import sys

import pytest

import topas_env

PUBLIC = [
    "Agent", "Decision", "EngineProfile", "InfeasibleDecision", "InputError", "ScoreTerms", "Snapshot", "Stage",
    "Workflow", "Workload", "__version__", "check_decision", "load_profile", "load_workload", "profile_names",
    "score_terms", "simulate", "workload_names",
]  # fmt: skip


def test_all_is_what_the_api_promises():
    assert topas_env.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(topas_env))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_loads(name):
    assert getattr(topas_env, name) is not None


def test_unknown_name():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = topas_env.nothing


def test_import_loads_neither_compiler_nor_torch():
    code = "import json, sys, topas_env; print(json.dumps([m for m in sys.modules if '.' not in m]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert "gymnasium" in loaded
    assert not loaded & {"numba", "torch", "scipy", "matplotlib", "stable_baselines3", "llvmlite"}


def test_registration():
    import gymnasium as gym

    spec = gym.spec("TopasPrefixState-v0")
    assert spec.entry_point == "topas_env.env:TopasPrefixStateEnv"
    assert spec.vector_entry_point == "topas_env.env:TopasPrefixStateVectorEnv"
    assert gym.envs.registration.EnvSpec.from_json(spec.to_json()) == spec
