"""The example and the commands, as a user starts them."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from topas_env.cli import main

ROOT = Path(__file__).parents[1]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_plain_stable_baselines3_trains(algorithm, capsys):
    spec = importlib.util.spec_from_file_location("train_sb3", ROOT / "examples" / "train_sb3.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    result = example.main(["--algorithm", algorithm, "--steps", "512", "--tasks", "4", "--episodes", "2"])
    assert np.isfinite(result)
    assert result > 0
    assert f"{algorithm}, 512 steps: mean JCT {result:.1f} s" in capsys.readouterr().out


def test_topas_train(tmp_path, capsys):
    settings = {
        "architecture": {"hidden": 8},
        "scenarios": {"workloads": ["dag-4"], "num_tasks": [4, 5]},
        "imitation": {"teacher": "spf", "rounds": 1, "points": 15, "epochs": 1},
        "evaluation": {
            "workloads": ["chain-3"], "profiles": ["qwen2.5-32b-a100-80g"], "host_tiers": ["all"], "loads": [0.5],
            "num_tasks": 3, "seeds": [0, 1], "policies": ["fcfs"],
        },
    }  # fmt: skip
    path = tmp_path / "c.json"
    path.write_text(json.dumps(settings))
    assert run("train", "--config", str(path), "--out", str(tmp_path / "o"), "--seed", "3") == 0
    out = capsys.readouterr()
    assert "chain-3" in out.out
    assert "held out: workload chain-3" in out.out
    assert (tmp_path / "o" / "learned.safetensors").exists()
    assert list((tmp_path / "o" / "log").iterdir())  # tensorboard's
    assert run("train", "--config", str(path), "--out", str(tmp_path / "o"), "--seed", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out)["seed"] == 3
    assert run("train", "--config", str(path), "--out", str(tmp_path / "o"), "--seed", "4") == 2
    assert "$.seed" in capsys.readouterr().err
    assert run("train", "--config", str(tmp_path / "none.toml")) == 2


def test_topas_tune(tmp_path, capsys, recwarn):
    out = tmp_path / "t.json"
    line = [
        "tune",
        "-w",
        "dag-4",
        "--load",
        "0.6",
        "--host-tier",
        "all",
        "--tasks",
        "3",
        "--trials",
        "2",
        "-o",
        str(out),
    ]
    assert run(*line) == 0
    assert "min_gain = " in capsys.readouterr().out
    content = json.loads(out.read_text())
    assert content["record"]["settings"]["workloads"] == ["dag-4"]
    assert run("tune", "-w", "nothing-such", "-o", str(out)) == 2
    assert "nothing-such" in capsys.readouterr().err
