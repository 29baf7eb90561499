"""The small environment that several tests play, and how they play it."""

import numpy as np

ID = "TopasPrefixState-v0"
SMALL = {"workload": "dag-4", "arrival_rate": 0.1, "num_tasks": 8}


def run(env, choose, seed=0):
    """Plays one episode; returns its return, number of steps and last info."""
    obs, info = env.reset(seed=seed)
    total, steps, terminated = 0.0, 0, False
    while not terminated:
        obs, reward, terminated, truncated, info = env.step(choose(obs, info))
        assert not truncated
        assert np.isfinite(reward)
        total += reward
        steps += 1
    return total, steps, info
