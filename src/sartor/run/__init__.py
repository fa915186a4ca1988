"""What every way to train shares: secret random numbers, who is drawn, what was spent, and files that keep both.

`stream` is the run's randomness, `sampling` who takes part in a step, `account` what the steps so far have cost, `files` what is written
for others or for its owner alone, and folders in which one process works at a time, `charges` the account of such a folder, whose files
prove where they belong (`sealed`). Nothing here knows of gradients, votes or clients, or needs PyTorch.
"""
