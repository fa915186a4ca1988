"""Individual accounts: what each holder's gradients really cost, filters that make a guarantee of it, and safe use of such figures."""

from __future__ import annotations

from sartor.individual.search import Candidate, Ranking, search_plans

__all__ = ["Candidate", "Ranking", "search_plans"]
