"""A reward is a number that remembers its terms, wherever it travels."""

import pickle

from rljob_runtime.protocols.rewards import Reward, terms_of


def test_a_reward_is_its_sum_and_keeps_its_terms_across_processes():
    reward = pickle.loads(pickle.dumps(Reward(2.5, {"right": 1.0, "short": 0.5})))
    assert reward == 2.5
    assert dict(terms_of(reward)) == {"right": 1.0, "short": 0.5}
    assert type(float(reward)) is float


def test_a_plain_number_has_no_terms():
    assert terms_of(0.5) == {}
