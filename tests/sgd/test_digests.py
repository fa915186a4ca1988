"""Code as digests: whatever makes it compute otherwise makes another."""

from sartor.sgd.digests import digest


def test_a_default_that_is_given_by_name_alone_counts():
    def made(scale):
        def loss(x, *, by=scale):
            return x * by

        return loss

    assert digest(made(1.0)) == digest(made(1.0)) != digest(made(2.0))


def test_what_a_function_keeps_in_its_attributes_counts():
    def made(scale):
        def loss(x):
            return x * loss.by

        loss.by = scale
        return loss

    assert digest(made(1.0)) == digest(made(1.0)) != digest(made(2.0))
