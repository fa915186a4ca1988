"""Reports: pages that people read after a run, with plots inside them, and the folder in which a run is kept.

A page is one file without requests to anywhere. It shows groups, never a holder, and small groups as `sartor.confidential` merges them.
"""
