"""One table of what is usual: every data set is in it, and what was asked for goes before it."""

import pytest

from sartor import usual
from sartor.data import available
from sartor.errors import SartorError
from sartor.federated.task import DATASETS, Settings


def test_every_data_set_has_a_recipe():
    assert all(isinstance(usual.recipe(name), usual.Recipe) for name in (*available(), *DATASETS))


def test_what_was_said_goes_before_what_is_usual():
    changed = usual.recipe("digits").but({"steps": 7, "model": "digits-cnn"})
    assert (changed.steps, changed.model, changed.batch) == (7, "digits-cnn", 256)


def test_another_optimizer_than_the_usual_one_has_a_learning_rate_of_its_own():
    assert usual.recipe("digits").but({"optimizer": "adam"}).lr == 0.01
    assert usual.recipe("digits").but({"optimizer": "adam", "lr": 0.3}).lr == 0.3
    assert usual.recipe("imdb").but({"optimizer": "adam"}).lr == usual.recipe("imdb").lr


@pytest.mark.parametrize("said", [{"optimizer": "magic"}, {"optimizer": "adam", "momentum": 0.9}, {"lr": 0.0}, {"momentum": -1.0}])
def test_a_recipe_that_cannot_be_followed_does_not_exist(said):
    with pytest.raises(SartorError):
        usual.recipe("digits").but(said)


def test_batches_of_ones_own_data_are_a_part_of_them():
    assert [usual.recipe_for(rows).batch for rows in (1, 60, 10**6)] == [1.0, 10.0, 512.0]


def test_a_federated_task_has_the_usual_settings_unless_told():
    made = Settings()
    assert (made.epsilon, made.share, made.delta) == (usual.ALLOWED.epsilon, usual.ALLOWED.share, usual.FEDERATION.delta)
    assert (made.clients, made.epochs, made.batch, made.lr) == (100, 5, 20, 0.1)
