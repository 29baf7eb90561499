"""Stand-in for torchvision, which transformers imports for image models that are not used here."""

from topas_absent import install

__version__ = "0.0.0+topas"

install(__name__, lambda name, *_args, **_kwargs: name)
