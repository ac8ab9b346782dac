"""Whom a method lets speak of how sure it is."""

from __future__ import annotations

from marks import both_dims, every_method
from tiny import build


@every_method
@both_dims
def test_every_network_has_an_opinion(name, dims):
    """A teacher that is not asked cannot disagree."""
    method = build(name, dims)
    opinions = list(method.named_networks().values())
    assert {id(one) for one in opinions} == {id(one) for one in method.networks()}
    assert {id(one) for one in method.predictors()} <= {id(one) for one in opinions}
