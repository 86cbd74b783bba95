"""Does a busy machine fail a test of properties?"""

import time

from hypothesis import given, settings
from hypothesis import strategies as st


@given(st.just(0.25))
@settings(max_examples=1)
def test_an_example_may_take_longer_than_the_usual_fifth_of_a_second(seconds):
    time.sleep(seconds)
