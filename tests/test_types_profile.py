"""Engine profiles: the shipped files, overrides, bases, and their faults."""

import json

import pytest

from topas_env import EngineProfile, InputError, load_profile, profile_names

SHIPPED = ["qwen2.5-32b-a100-80g", "qwen2.5-32b-a100-80g-mem0.90", "qwen2.5-7b-a100-80g", "toy"]


def test_names():
    assert profile_names() == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_every_number_has_a_source(name):
    profile = load_profile(name)
    assert profile.name == name
    assert profile.description
    fields = set(profile.to_dict()) - {"name", "description", "sources"}
    assert set(profile.sources) == fields or set(profile.sources) == {"*"}
    assert load_profile(profile.to_dict()) == profile
    assert load_profile(profile) == profile


# PEERS.md, facts of the profile: tokens of a prefill batch and milliseconds.
PREFILL_MS = {512: 143, 1024: 265, 2048: 525, 4096: 1079, 8192: 2288}


def test_prefill_is_within_the_stated_error_of_the_measured_table():
    profile = load_profile("qwen2.5-32b-a100-80g")
    for tokens, measured in PREFILL_MS.items():
        fitted = 1000 * (profile.prefill_base_s + profile.prefill_s_per_token * tokens)
        assert abs(fitted / measured - 1) <= 0.055, tokens


def test_facts_of_the_32b_profile():
    profile = load_profile("qwen2.5-32b-a100-80g")
    assert profile.kv_budget_tokens == 18560
    assert load_profile("qwen2.5-32b-a100-80g-mem0.90").kv_budget_tokens == 39000
    assert profile.load_s_per_token == 262144 / 25e9  # KV bytes of a token over PCIe's 25 GB/s
    # The loaded step of the gpustack log: 49.1 ms with some 16,000 tokens in the batch.
    assert profile.step_base_s + profile.step_s_per_kv_token * 0.85 * 18560 == pytest.approx(0.0491, rel=2e-3)


def test_small_model_is_scaled_from_the_large_one():
    large, small = load_profile("qwen2.5-32b-a100-80g"), load_profile("qwen2.5-7b-a100-80g")
    kv, weights = 57344 / 262144, 7.62 / 32.76
    assert small.load_s_per_token == pytest.approx(large.load_s_per_token * kv)
    assert small.step_s_per_kv_token == pytest.approx(large.step_s_per_kv_token * kv, rel=1e-3)
    assert small.prefill_s_per_token == pytest.approx(large.prefill_s_per_token * weights, rel=1e-3)
    # (0.836 * 78.4 GiB - 7.62e9 * 2 bytes) / 57344
    assert small.kv_budget_tokens == pytest.approx((0.836 * 78.4 * 2**30 - 7.62e9 * 2) / 57344, rel=1e-3)
    assert small.kv_budget_tokens > 2 * 423_000  # two of the longest recorded sessions at once


def test_overrides():
    profile = load_profile("qwen2.5-32b-a100-80g", host_tier="none", kv_budget_tokens=39000, reserve_cap_tokens=None)
    assert (profile.host_tier, profile.kv_budget_tokens, profile.reserve_cap_tokens) == ("none", 39000, None)
    assert profile.step_base_s == load_profile("qwen2.5-32b-a100-80g").step_base_s


def test_costs_with_and_without_a_host_tier():
    toy = load_profile("toy")
    with_tier, without = toy.costs(host_tier=True), toy.costs(host_tier=False)
    assert (with_tier.load_s_per_token, with_tier.offload_s_per_token) == (0.03125, 0.03125)
    assert (without.load_s_per_token, without.offload_s_per_token) == (0.125, 0.0)  # prefilled instead
    assert with_tier.rebuild_s_per_token == 0.125
    assert load_profile("toy", rebuild="decode").costs(host_tier=True).rebuild_s_per_token == 1.0


def test_file_with_a_base_beside_it(tmp_path):
    (tmp_path / "below.json").write_text(json.dumps({"base": "toy", "name": "below", "kv_budget_tokens": 50}))
    (tmp_path / "mine.json").write_text(json.dumps({"base": "below.json", "name": "mine", "host_tier": "none"}))
    profile = load_profile(tmp_path / "mine.json", chunk_tokens=16)
    assert (profile.name, profile.kv_budget_tokens, profile.host_tier) == ("mine", 50, "none")
    assert profile.chunk_tokens == 16
    assert load_profile({"base": str(tmp_path / "below.json"), "name": "x"}).kv_budget_tokens == 50


def test_base_of_itself_ends(tmp_path):
    path = tmp_path / "loop.json"
    path.write_text(json.dumps({"base": "loop.json"}))
    with pytest.raises(InputError, match=r"loop\.json: \$\.base: .* bases in a row"):
        load_profile(path)


@pytest.mark.parametrize(
    ("profile", "overrides", "message"),
    [
        ("qwen2.5-32b", {}, '^profile: .*"qwen2.5-32b"; did you mean qwen2.5-32b-a100-80g'),
        ("no/such/file.json", {}, '^profile: .*"no/such/file.json"'),
        (7, {}, "^profile: expected a name, .* got 7$"),
        ("toy", {"host_teir": "none"}, r'^toy: \$\.host_teir: unknown field, got "none"; did you mean host_tier\?$'),
        ("toy", {"host_tier": "some"}, r'^toy: \$\.host_tier: must be one of "all", .* got "some"$'),
        ("toy", {"kv_budget_tokens": 0}, r"^toy: \$\.kv_budget_tokens: must be at least 1, got 0$"),
        ("toy", {"kv_budget_tokens": 3.0}, r"^toy: \$\.kv_budget_tokens: expected int, got 3\.0$"),
        ("toy", {"mixed_chunk": 1}, r"^toy: \$\.mixed_chunk: expected bool, got 1$"),
        ("toy", {"prefill_s_per_token": 0}, r"^toy: \$\.prefill_s_per_token: must be above 0, got 0\.0$"),
        ("toy", {"reserve_ratio": -1}, r"^toy: \$\.reserve_ratio: must be at least 0, got -1\.0$"),
        ("toy", {"reserve_ratio": float("nan")}, r"^toy: \$\.reserve_ratio: must be a finite number, got NaN$"),
        ("toy", {"step_base_s": 0}, r"^toy: \$\.step_base_s: a decode step must take time, got 0\.0$"),
        ({"name": "x"}, {}, r"^\$\.kv_budget_tokens: missing field"),
        ({"base": 3}, {}, r"^\$\.base: expected the name or path of a profile, got 3$"),
    ],
)
def test_faults(profile, overrides, message):
    with pytest.raises(InputError, match=message):
        load_profile(profile, **overrides)


@pytest.mark.parametrize(("text", "shown"), [("{", "not JSON"), ("[1]", "expected object"), ('{"a": 1}', "$.a")])
def test_faulty_file_is_named(tmp_path, text, shown):
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_profile(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert shown in str(caught.value)


def test_profile_is_a_value():
    assert load_profile("toy") == load_profile("toy")
    assert load_profile("toy") != load_profile("toy", kv_budget_tokens=99)
    assert isinstance(load_profile("toy"), EngineProfile)
