"""The policies `learned` and `tuned`: the same in every place, for any workload, with clear errors."""

import json

import numpy as np
import pytest

from topas_agents import Architecture, Checkpoint, LearnedPolicy, save_checkpoint
from topas_agents._architecture import fresh_weights
from topas_agents._checkpoint import TrainingRecord
from topas_agents._policy import idle
from topas_env import InputError, load_workload, simulate
from topas_env._core.feature_names import CANDIDATE_FEATURES, GLOBAL_FEATURES
from topas_env._decision import check_decision
from topas_policies import make_policy, policy_names
from topas_policies._tuned import SHIPPED_TUNING, Tuned, TunedParameters, Tuning, load_tuning, save_tuning

RANDOM = Checkpoint(Architecture(8), fresh_weights(Architecture(8), 2), TrainingRecord("none"))
POLICIES = {
    "random": lambda: LearnedPolicy(RANDOM),
    "learned": lambda: LearnedPolicy(),
    "tuned": lambda: Tuned(),
}


class Watched:
    """Passes snapshots on and keeps what was answered."""

    def __init__(self, policy):
        self.policy, self.name = policy, policy.name
        self.manages_prefixes = policy.manages_prefixes
        self.seen = []

    def reset(self, *, seed=None):
        self.policy.reset(seed=seed)

    def decide(self, snapshot):
        decision = self.policy.decide(snapshot)
        self.seen.append((snapshot, decision))
        return decision


def test_names():
    assert {"learned", "tuned"} <= set(policy_names())
    for name in ("learned", "tuned"):
        policy = make_policy(name)
        assert policy.name == name
        assert policy.manages_prefixes
        assert policy.compiled() is None


@pytest.mark.parametrize("name", POLICIES)
def test_arrays_and_snapshots_give_the_same_run(name):
    """`decide_view` in the simulator's loop, and `decide` on the snapshot that a live engine would hand over."""
    workload = load_workload("dag-4", arrival_rate=0.12, num_tasks=8, seed=1)
    fast = simulate(workload, POLICIES[name]())
    plain = simulate(workload, POLICIES[name](), compiled=False)
    np.testing.assert_array_equal(fast.jct_s, plain.jct_s)
    np.testing.assert_array_equal(fast.decisions["time"], plain.decisions["time"])


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("workload", ["dag-10-wide", "metagpt-sop"])
def test_any_number_of_agents_and_requests(name, workload):
    watched = Watched(POLICIES[name]())
    result = simulate(load_workload(workload, num_tasks=5, seed=2), watched)
    assert np.isfinite(result.jct_s).all()
    assert max(len(snapshot.requests) for snapshot, _ in watched.seen) > 4
    for snapshot, decision in watched.seen:
        check_decision(snapshot, decision)


def test_no_network_lets_the_engine_stand_still():
    """Whatever the weights: with nothing running and something that fits, a request is admitted."""
    wanted = 0
    for seed in range(6):
        architecture = Architecture(8, candidate_list="short")
        policy = LearnedPolicy(Checkpoint(architecture, fresh_weights(architecture, seed), TrainingRecord("none")))
        watched = Watched(policy)
        simulate(load_workload("dag-4", num_tasks=6, seed=seed), watched)
        for snapshot, decision in watched.seen:
            assert decision.requests or not snapshot.requests
        scorer = policy._scorer
        for snapshot, _ in watched.seen:
            policy.decide(snapshot)
            n = len(policy.scores)
            if n > 1 and not any(r.status == "running" for r in snapshot.requests):
                rows = policy._look.rows[:n]
                wanted += int(scorer(policy._look.overall, rows).argmax() == 0)  # the first admits nobody
    assert wanted > 0, "no network wanted to, so this shows nothing"


def test_choice_is_the_best_scored_candidate():
    """The index that `decide` takes is the argmax of the torch network on the environment's observation."""
    import gymnasium as gym
    import torch

    from topas_agents._network import Scorer

    scorer = Scorer(RANDOM.architecture)
    scorer.put(RANDOM.weights)
    policy = LearnedPolicy(RANDOM, preempt_margin=0.0)
    env = gym.make("topas_env:TopasPrefixState-v0", workload="dag-4", arrival_rate=0.12, num_tasks=6)
    obs, _ = env.reset(seed=3)
    chosen = set()
    for _ in range(25):
        overall, mask = torch.from_numpy(obs["global"])[None], torch.from_numpy(obs["action_mask"])[None] > 0.5
        rows = torch.from_numpy(obs["candidates"]).reshape(1, mask.shape[1], -1)
        with torch.no_grad():
            scores = scorer(overall, rows, mask)[0][0].numpy()
        scores[: int(mask.sum())][idle(rows[0, : int(mask.sum())].numpy())] = -np.inf
        decision = policy.decide(env.unwrapped.snapshot())
        np.testing.assert_allclose(policy.scores, scores[: len(policy.scores)], rtol=1e-3, atol=1e-4)
        action = env.unwrapped.encode(decision)
        assert scores[action] == pytest.approx(scores.max(), abs=1e-4)
        chosen.add(action)
        obs, _, terminated, _, _ = env.step(action)
        if terminated:
            break
    assert len(chosen) > 1


def test_checkpoint_by_path(tmp_path):
    save_checkpoint(tmp_path / "mine", RANDOM)
    policy = make_policy("learned", checkpoint=str(tmp_path / "mine.safetensors"))
    assert policy.checkpoint.architecture == RANDOM.architecture
    with pytest.raises(InputError, match=r"absent\.json: cannot be read"):
        make_policy("learned", checkpoint=str(tmp_path / "absent"))
    for wrong in ({"checkpoint": 3}, {"max_candidates": 0}, {"max_candidates": 2.5}, {"max_candidates": True}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            make_policy("learned", **wrong)


def test_fewer_candidates_still_work():
    """With room for one candidate it is always the incumbent: nothing is admitted but by force. With room for five the
    policy that ships admits all by itself."""
    workload = load_workload("dag-4", num_tasks=3, seed=0)
    result = simulate(workload, LearnedPolicy(RANDOM, max_candidates=1))
    assert result.world.clock["forced"][0] > 0
    assert simulate(workload, LearnedPolicy(max_candidates=5)).world.clock["forced"][0] == 0


def test_preempting_only_beyond_the_margin():
    """Weights that like to preempt, and a little to admit, do so; with no margin given, or a huge one, never."""
    weights = {name: np.zeros_like(value) for name, value in RANDOM.weights.items()}
    weights["input.scale"][:] = 1.0
    weights["first.weight"][0, len(GLOBAL_FEATURES) + CANDIDATE_FEATURES.index("preempted")] = 1.0
    weights["first.weight"][0, len(GLOBAL_FEATURES) + CANDIDATE_FEATURES.index("admitted")] = 0.1
    for layer in ("second", "third", "score"):
        weights[f"{layer}.weight"][0, 0] = 1.0
    eager = Checkpoint(RANDOM.architecture, weights, RANDOM.record)
    workload = load_workload("dag-4", arrival_rate=0.15, num_tasks=10, seed=0)
    preempted = {
        margin: int(simulate(workload, LearnedPolicy(eager, preempt_margin=margin)).decisions["preempted"].sum())
        for margin in (0.0, 1e9, None)
    }
    assert preempted[0.0] > 0
    assert preempted[1e9] == preempted[None] == 0
    with pytest.raises(InputError, match="preempt_margin"):
        make_policy("learned", preempt_margin=-1.0)


def test_learned_loads_no_torch():
    import subprocess
    import sys

    code = "import sys; from topas_policies import make_policy; make_policy('learned'); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_tuned_with_the_weights_of_topas_takes_topas_states():
    """With the paper's weights and every candidate listed, the first of the best-scored states has TOPAS's score."""
    from topas_env import score_terms

    topas = make_policy("topas")
    watched = Watched(Tuned(TunedParameters(), max_candidates=2000))
    simulate(load_workload("dag-4", arrival_rate=0.12, num_tasks=6, seed=4), watched)
    assert len(watched.seen) > 10
    for snapshot, decision in watched.seen:
        mine = score_terms(snapshot, decision).total
        theirs = score_terms(snapshot, topas.decide(snapshot)).total
        assert mine >= theirs - 1e-6 * max(1.0, abs(theirs))


def test_tuned_minimum_gain_stops_preemption():
    workload = load_workload("dag-4", arrival_rate=0.15, num_tasks=12, seed=0)
    plain = simulate(workload, Tuned(TunedParameters(redo=0.0, revoke=0.0)))
    calm = simulate(workload, Tuned(TunedParameters(redo=0.0, revoke=0.0, min_gain=1e9)))
    assert plain.decisions["preempted"].sum() > 0
    assert calm.decisions["preempted"].sum() == 0


def test_tuned_cap_on_changes():
    workload = load_workload("dag-10-wide", arrival_rate=0.06, num_tasks=6, seed=0)
    assert simulate(workload, Tuned(TunedParameters(max_changes=1))).decisions["admitted"].max() == 1
    assert simulate(workload, Tuned(TunedParameters())).decisions["admitted"].max() > 1


def test_tuned_parameters(tmp_path):
    tuning = load_tuning(SHIPPED_TUNING)
    assert tuning.record["trials"] > 0
    assert min(tuning.record["settings"]["seeds"]) >= 1000  # far from the seeds that people report
    assert make_policy("tuned", rho=0.25).parameters == msgspec_replace(tuning.parameters, rho=0.25)
    path = tmp_path / "mine.json"
    save_tuning(path, Tuning(1, TunedParameters(move=2.0), {}))
    assert make_policy("tuned", parameters=str(path)).parameters.move == 2.0
    good = json.loads(path.read_text())
    for change, words in (
        ({"version": 2}, "version"),
        ({"parameters": {"move": -1.0}}, "move"),
        ({"parameters": {"speed": 1.0}}, "speed"),
        ({"parameters": {"max_enumerated": 40}}, "max_enumerated"),
        ({"parameters": 3}, "parameters"),
    ):
        path.write_text(json.dumps(good | change))
        with pytest.raises(InputError, match=words) as error:
            make_policy("tuned", parameters=str(path))
        assert "mine.json" in str(error.value)
        assert "\n" not in str(error.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"mine\.json"):
        make_policy("tuned", parameters=str(path))
    for wrong in ({"rho": -1.0}, {"move": float("nan")}, {"max_changes": 1.5}, {"parameters": 4}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            make_policy("tuned", **wrong)


def msgspec_replace(parameters, **changes):
    import msgspec

    return msgspec.structs.replace(parameters, **changes)
