"""Do clients that change between brokers at every moment leave both of them alive?"""

from tests.support.clients.take_over_storm import Storm


def test_a_storm_of_adoptions(pair, connect):
    """A few client ids, connected at both brokers all the time: sessions move while their clients come back."""
    a, b = pair
    storm = Storm([a.address, b.address], "c", ids=3)
    storm.run(10)
    assert storm.connected > 20
    for broker in pair:
        connect(broker=broker).ping()
