"""What the engine tests, the measurements and the documented examples need to run a real SGLang without a GPU."""

from topas_bridge.testing._load import Outcome, Prompt, make_prompts, make_trouble, run_prompts
from topas_bridge.testing._server import Server, free_port, start_server
from topas_bridge.testing._tiny import make_tiny_adapter, make_tiny_checkpoint, tiny_environment, tiny_flags

__all__ = [
    "Outcome",
    "Prompt",
    "Server",
    "free_port",
    "make_prompts",
    "make_tiny_adapter",
    "make_tiny_checkpoint",
    "make_trouble",
    "run_prompts",
    "start_server",
    "tiny_environment",
    "tiny_flags",
]
