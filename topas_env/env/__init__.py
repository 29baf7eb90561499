"""The Gymnasium environment `TopasPrefixState-v0`, alone and batched."""

from topas_env.env._single import TopasPrefixStateEnv
from topas_env.env._vector import TopasPrefixStateVectorEnv

__all__ = ["TopasPrefixStateEnv", "TopasPrefixStateVectorEnv"]
