"""Scheduling policies: what a policy is, the ones that ship, and the registry that knows them by name."""

from topas_policies._baselines import (
    FCFS,
    LAS,
    LPM,
    SPF,
    SRPT,
    GatedLPM,
    ParrotFCFS,
    QueuePolicy,
    SGLangFCFS,
    SGLangLPM,
)
from topas_policies._hold import HoldDepth, HoldMany
from topas_policies._more_orders import ATLAS, HRRN, PLAS, BoundedLPM
from topas_policies._more_prefixes import Continuum, InferCept, KVFlow
from topas_policies._more_topas import TopasKeep
from topas_policies._policy import Policy
from topas_policies._registry import PolicyInfo, make_policy, policy_info, policy_names, register_policy
from topas_policies._rollout import Rollout, RolloutReport
from topas_policies._topas import Topas, TopasAging, TopasBase, TopasReuse
from topas_policies._tuned import Tuned

__all__ = [
    "ATLAS",
    "FCFS",
    "HRRN",
    "LAS",
    "LPM",
    "PLAS",
    "SPF",
    "SRPT",
    "BoundedLPM",
    "Continuum",
    "GatedLPM",
    "HoldDepth",
    "HoldMany",
    "InferCept",
    "KVFlow",
    "ParrotFCFS",
    "Policy",
    "PolicyInfo",
    "QueuePolicy",
    "Rollout",
    "RolloutReport",
    "SGLangFCFS",
    "SGLangLPM",
    "Topas",
    "TopasAging",
    "TopasBase",
    "TopasKeep",
    "TopasReuse",
    "Tuned",
    "make_policy",
    "policy_info",
    "policy_names",
    "register_policy",
]

_BASELINES = (FCFS, LPM, ParrotFCFS, LAS, SPF, SRPT, GatedLPM)
_TOPAS = (Topas, TopasBase, TopasReuse, TopasAging)
_HOLD = (HoldMany, HoldDepth)
_ENGINE = (SGLangFCFS, SGLangLPM)
_LITERATURE = (KVFlow, Continuum, InferCept, PLAS, ATLAS, BoundedLPM, HRRN, TopasKeep)
for _policy in (*_BASELINES, *_TOPAS, *_HOLD, Rollout, Tuned, *_LITERATURE, *_ENGINE):
    register_policy(_policy.name, _policy)
