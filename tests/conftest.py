"""Settings of all tests: property tests draw the same cases each time, and no test depends on the clock."""

from hypothesis import HealthCheck, settings

settings.register_profile("topas", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("topas")
