"""Attacks on our own models, lower bounds that can refute a claimed epsilon, and replay with one holder zeroed."""
