"""What exists for comparison alone, and protects nobody as it claims: nothing else of the library imports it but its commands.

`fit_published` trains PDP-SGD as it was published.
"""

from sartor.baselines.published import PublishedResult, fit_published

__all__ = ["PublishedResult", "fit_published"]
