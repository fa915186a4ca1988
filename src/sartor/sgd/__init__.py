"""Training by stochastic gradient descent."""
