"""Students: they learn from answered queries alone, and are measured on public test rows."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.semi_supervised import LabelSpreading

from sartor.data import load
from sartor.errors import SartorError
from sartor.pate.networks import predict, teacher_network
from sartor.pate.teachers import train_student

DATA = load("digits")
X, Y = DATA.train.tensors
LABELS = Y[:300].numpy()
MAKE = partial(teacher_network, DATA.shape, DATA.classes)


def network(labels=LABELS, queries=X[:300], make=MAKE, **settings):
    return train_student(make, queries, labels, DATA.test, **{"epochs": 8, "lr": 3e-3, "augment": False, "seed": 0, **settings})


def test_a_network_learns_the_labels_and_is_measured_on_the_test_rows():
    student = network()
    assert student.accuracy > 0.85
    assert student.accuracy == np.mean(predict(student.model, DATA.test.tensors[0]) == DATA.test.tensors[1].numpy())
    assert student.labels == 300
    assert not student.model.training


def test_a_student_follows_its_labels_not_the_truth():
    wrong = (LABELS + 1) % 10
    assert network(wrong).accuracy < 0.1


@pytest.mark.parametrize("make", [MAKE, RandomForestClassifier(20), partial(RandomForestClassifier, 20)])
def test_unanswered_queries_teach_nothing(make):
    labels = LABELS.copy()
    labels[100:200] = -1
    student = network(labels, make=make, augment=True)
    queries = X[:300].clone()
    queries[100:200] = 5.0
    same = network(labels, queries, make=make, augment=True)
    without = network(np.delete(labels, range(100, 200)), torch.cat([X[:100], X[200:300]]), make=make, augment=True)
    assert student.accuracy == same.accuracy == without.accuracy
    assert student.labels == 200


def test_classifiers_learn_and_are_not_changed_in_place():
    forest = RandomForestClassifier(20)
    assert network(make=forest).accuracy > 0.8
    assert not hasattr(forest, "classes_")
    assert network(make=forest).accuracy == network(make=forest).accuracy


def test_one_label_makes_a_student():
    assert network([3, *[-1] * 299]).labels == 1


def test_the_callers_random_numbers_stay_as_they_were():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    network(epochs=1)
    assert torch.equal(torch.rand(3), expected)


def test_bad_requests_say_what_is_wrong():
    for match, request in {
        "no query was answered": lambda: network(np.full(300, -1)),
        "300 whole numbers": lambda: network(Y[:299].numpy()),
        "one for each query": lambda: network(LABELS / 2),
        "tells only 10": lambda: network(LABELS + 1),
        "two classes": lambda: network(np.zeros(300, int), make=LogisticRegression()),
        "scikit-learn": lambda: network(make=lambda: "forest"),
    }.items():
        with pytest.raises(SartorError, match=match):
            request()


def test_a_student_may_look_at_queries_without_a_label():
    few = np.where(np.arange(300) < 20, LABELS, -1)
    spreading = LabelSpreading(kernel="rbf", gamma=2.0, max_iter=200)
    alone, among = (network(few, make=spreading, unlabelled=other) for other in (False, True))
    assert alone.labels == among.labels == 20
    assert among.accuracy > alone.accuracy
    assert len(among.model.transduction_) == 300
    assert network(np.where(few < 0, -7, few), make=spreading, unlabelled=True).accuracy == among.accuracy
