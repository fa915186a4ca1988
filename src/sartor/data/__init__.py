"""Data: public data sets by name, and readers for tables and arrays of one's own.

Whatever is learned from private rows before training is a leak, so scaling, categories and vocabularies are public constants here; where a
table of one's own comes without them, a named warning says so.

>>> import sartor.data
>>> sartor.data.load("digits")
Data(digits: 1437 training and 360 test rows of shape (1, 8, 8), 10 classes)
"""

from __future__ import annotations

from sartor.data.arrays import read_arrays
from sartor.data.dataset import Data
from sartor.data.registry import available, load
from sartor.data.schema import Schema, read_schema
from sartor.data.table import HeldOut, PrivateScaling, read_table

__all__ = ["Data", "HeldOut", "PrivateScaling", "Schema", "available", "load", "read_arrays", "read_schema", "read_table"]
