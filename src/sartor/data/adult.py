"""Adult (census income): 14 columns as 105 features, by bounds and categories that are public.

Categories are those that the data's own documentation lists. Bounds are round figures for what a column means, chosen without looking at
the rows: an age from 16 to 100, at most 100 hours a week.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
from torch.utils.data import TensorDataset

from sartor.data.columns import numbers, one_hot, scaled
from sartor.data.dataset import Data, Folder, Layout, dataset, find, lines, reading
from sartor.errors import SartorError

BOUNDS: dict[str, tuple[float, float]] = {
    "age": (16, 100),
    "fnlwgt": (0, 1_500_000),
    "education-num": (1, 16),
    "capital-gain": (0, 100_000),
    "capital-loss": (0, 5_000),
    "hours-per-week": (0, 100),
}

CATEGORIES: dict[str, tuple[str, ...]] = {
    "workclass": ("Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov", "Without-pay", "Never-worked"),
    "education": (
        "Bachelors",
        "Some-college",
        "11th",
        "HS-grad",
        "Prof-school",
        "Assoc-acdm",
        "Assoc-voc",
        "9th",
        "7th-8th",
        "12th",
        "Masters",
        "1st-4th",
        "10th",
        "Doctorate",
        "5th-6th",
        "Preschool",
    ),
    "marital-status": (
        "Married-civ-spouse",
        "Divorced",
        "Never-married",
        "Separated",
        "Widowed",
        "Married-spouse-absent",
        "Married-AF-spouse",
    ),
    "occupation": (
        "Tech-support",
        "Craft-repair",
        "Other-service",
        "Sales",
        "Exec-managerial",
        "Prof-specialty",
        "Handlers-cleaners",
        "Machine-op-inspct",
        "Adm-clerical",
        "Farming-fishing",
        "Transport-moving",
        "Priv-house-serv",
        "Protective-serv",
        "Armed-Forces",
    ),
    "relationship": ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried"),
    "race": ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"),
    "sex": ("Female", "Male"),
    "native-country": (
        "United-States",
        "Cambodia",
        "England",
        "Puerto-Rico",
        "Canada",
        "Germany",
        "Outlying-US(Guam-USVI-etc)",
        "India",
        "Japan",
        "Greece",
        "South",
        "China",
        "Cuba",
        "Iran",
        "Honduras",
        "Philippines",
        "Italy",
        "Poland",
        "Jamaica",
        "Vietnam",
        "Mexico",
        "Portugal",
        "Ireland",
        "France",
        "Dominican-Republic",
        "Laos",
        "Ecuador",
        "Taiwan",
        "Haiti",
        "Columbia",
        "Hungary",
        "Guatemala",
        "Nicaragua",
        "Scotland",
        "Thailand",
        "Yugoslavia",
        "El-Salvador",
        "Trinadad&Tobago",
        "Peru",
        "Hong",
        "Holand-Netherlands",
    ),
}

COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race", "sex"),
    *("capital-gain", "capital-loss", "hours-per-week", "native-country"),
)

_LAYOUTS = (Layout("uci", ("adult", "."), (("adult.data",), ("adult.test",))),)


def read(folder: Folder = None) -> Data:
    """Whether a person earns more than 50,000 dollars: 32,561 and 16,281 rows of 105 features."""
    train, test = (_part(path) for path in find("adult", folder, _LAYOUTS).files)
    return Data("adult", train, test, 2, (train.tensors[0].shape[1],))


def _part(path: Path) -> TensorDataset:
    text = io.StringIO("\n".join(line for line in lines(path) if not line.startswith("|")))
    with reading(path, "rows of the Adult data"):
        rows = [row for row in csv.reader(text, skipinitialspace=True) if row]
    if not rows or any(len(row) != len(COLUMNS) + 1 for row in rows):
        raise SartorError(f"{path} does not have {len(COLUMNS) + 1} fields in every row, as the Adult data have.")
    columns = dict(zip((*COLUMNS, "income"), zip(*rows, strict=True), strict=True))
    features = [
        scaled(numbers(columns[name], name), *BOUNDS[name]) if name in BOUNDS else one_hot(columns[name], CATEGORIES[name])
        for name in COLUMNS
    ]
    return dataset(np.hstack(features), np.array([income.rstrip(". ") == ">50K" for income in columns["income"]]))
