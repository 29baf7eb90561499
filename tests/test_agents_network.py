"""The scoring network: torch and numpy agree, order does not matter, size does not matter."""

import numpy as np
import pytest
import torch

from topas_agents._architecture import Architecture, NumpyScorer, fresh_weights
from topas_agents._imitate import soft_target_loss
from topas_agents._network import Scorer
from topas_env._core.features import CANDIDATE_FEATURES, GLOBAL_FEATURES

G, C = len(GLOBAL_FEATURES), len(CANDIDATE_FEATURES)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def points(n: int, k: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, G)).astype(np.float32), rng.normal(size=(n, k, C)).astype(np.float32)


def trained(hidden: int = 16) -> Scorer:
    """A scorer with weights that are not special, the standardisation included."""
    scorer = Scorer(Architecture(hidden), seed=3)
    overall, rows = points(50, 4, seed=9)
    scorer.standardise(overall * 3 + 1, rows.reshape(-1, C) * 0.2 - 2)
    return scorer


def scores_of(scorer: Scorer, overall, rows, mask):
    with torch.no_grad():
        return scorer(torch.from_numpy(overall), torch.from_numpy(rows), torch.from_numpy(mask))[0].numpy()


def test_numpy_and_torch_agree():
    scorer = trained()
    plain = NumpyScorer(scorer.weights())
    for k in (1, 2, 7, 32, 100):
        overall, rows = points(5, k, seed=k)
        expected = scores_of(scorer, overall, rows, np.ones((5, k), bool))
        for i in range(5):
            np.testing.assert_allclose(plain(overall[i], rows[i]), expected[i], rtol=1e-4, atol=1e-5)


def test_rows_without_a_candidate_change_nothing():
    """A batch is padded to max_candidates; whatever lies in the padding, scores are those of the candidates alone."""
    scorer = trained()
    overall, rows = points(3, 10)
    mask = np.arange(10) < np.array([[1], [4], [10]])
    full = scores_of(scorer, overall, rows, mask)
    assert (full[~mask] == np.finfo(np.float32).min).all()
    for i, n in enumerate((1, 4, 10)):
        alone = scores_of(scorer, overall[i : i + 1], rows[i : i + 1, :n], np.ones((1, n), bool))
        np.testing.assert_allclose(full[i, :n], alone[0], rtol=1e-4, atol=1e-5)


def test_a_permutation_of_candidates_permutes_scores():
    plain = NumpyScorer(trained().weights())
    overall, rows = points(1, 20)
    order = np.random.default_rng(1).permutation(20)
    there, back = plain(overall[0], rows[0]), plain(overall[0], rows[0][order])
    np.testing.assert_allclose(there[order], back, rtol=1e-4, atol=1e-5)
    assert np.ptp(there) > 1e-3


def test_context_matters():
    """The score of a candidate depends on the others: it is a choice among them."""
    plain = NumpyScorer(trained().weights())
    overall, rows = points(1, 6)
    alone = plain(overall[0], rows[0][:1])
    assert abs(plain(overall[0], rows[0])[0] - alone[0]) > 1e-4


def test_standardise_measures_mean_and_deviation():
    scorer = Scorer(Architecture(8))
    overall, rows = points(4000, 2, seed=5)
    overall = overall * 2 + 3
    rows[..., 0] = 1.0  # `present` never changes: left alone but for its mean
    scorer.standardise(overall, rows.reshape(-1, C))
    x = torch.from_numpy(np.concatenate([overall, rows[:, 0]], axis=1))
    y = scorer.input(x).numpy()
    np.testing.assert_allclose(y[:, :G].mean(axis=0), 0.0, atol=0.01)
    np.testing.assert_allclose(y[:, :G].std(axis=0), 1.0, atol=0.01)
    assert (y[:, G] == 0.0).all()


def test_weights_have_the_promised_names_and_shapes():
    architecture = Architecture(8)
    weights = Scorer(architecture).weights()
    assert {name: value.shape for name, value in weights.items()} == architecture.shapes()
    assert all(np.array_equal(fresh_weights(architecture, 4)[n], Scorer(architecture, 4).weights()[n]) for n in weights)
    assert Architecture(0).problem() is not None
    assert Architecture(8, "other").problem() is not None


def test_soft_target_loss_by_hand():
    """Two candidates with equal scores: the policy is (1/2, 1/2), its entropy ln 2.

    Expected regret (0 + 3) / 2 = 1.5; temperature 0.5: loss = 1.5 - 0.5 * ln 2. A third one that was not labelled
    has no part in it, whatever its score.
    """
    scores = torch.tensor([[1.0, 1.0, 50.0]])
    regret = torch.tensor([[0.0, 3.0, 0.0]])
    known = torch.tensor([[True, True, False]])
    assert soft_target_loss(scores, regret, known, 0.5).item() == pytest.approx(1.5 - 0.5 * np.log(2), rel=1e-5)


def test_the_best_scores_for_the_loss_are_minus_regret_over_temperature():
    """The loss is a divergence from softmax(-regret / temperature), so its gradient vanishes there and nowhere near."""
    regret = torch.tensor([[0.0, 0.3, 1.2, 0.7]])
    known = torch.ones(1, 4, dtype=torch.bool)
    for shift, zero in ((0.0, True), (0.5, False)):
        scores = (-regret / 0.4 + shift * torch.tensor([[1.0, 0.0, 0.0, 0.0]])).requires_grad_()
        soft_target_loss(scores, regret, known, 0.4).backward()
        assert (scores.grad.abs().max().item() < 1e-6) == zero
