"""Makes what serves persistent clients: APPLICATION and DEVICE delivery, and the dispatcher that feeds both."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker import providers
from penstock.broker.ground import Ground
from penstock.dispatch.dispatcher import Dispatcher
from penstock.dispatch.moves import SessionMoves
from penstock.dispatch.persistent import PersistentDispatch
from penstock.dispatch.share_feeds import ShareFeeds
from penstock.dispatch.type_change import TypeChange
from penstock.services.housekeeper import CLIENT, DELETED, SHARE
from penstock.settings import Settings
from penstock.subscribers.application.contexts import Contexts
from penstock.subscribers.application.control import ApplicationOverview
from penstock.subscribers.application.delivery import ApplicationDelivery
from penstock.subscribers.application.elsewhere import Elsewhere
from penstock.subscribers.application.names import ApplicationNames
from penstock.subscribers.application.subscriber import ApplicationSubscriber
from penstock.subscribers.base import Subscriber
from penstock.subscribers.device.delivery import DeviceDelivery
from penstock.subscribers.device.store.base import DeviceStore
from penstock.subscribers.device.subscriber import DeviceSubscriber
from penstock.subscribers.kinds import Kinds


def application_names(settings: Settings, prefix: str) -> ApplicationNames:
    return ApplicationNames(
        prefix,
        client_id_validation=settings.application.client_id_validation,
        shared_topic_validation=settings.application.shared_topic_validation,
    )


@dataclass(frozen=True, slots=True)
class Persistence:
    """`stores` and `devices` are empty where messages wait for DEVICE clients in memory."""

    delivery: ApplicationDelivery
    overview: ApplicationOverview
    stores: tuple[DeviceStore, ...]
    devices: tuple[DeviceDelivery, ...]
    dispatcher: Dispatcher
    feeds: ShareFeeds
    dispatch: PersistentDispatch
    kinds: tuple[Subscriber, ...]

    @classmethod
    def of(cls, ground: Ground, names: ApplicationNames, elsewhere: Elsewhere) -> Persistence:
        base, settings = ground.base, ground.base.settings
        delivery = ApplicationDelivery(
            base.hub,
            ground.log,
            Contexts(ground.state, base.loop),
            names,
            settings.application,
            elsewhere=elsewhere,
            note=ground.housekeeper.note,
        )
        for kind in (CLIENT, DELETED, SHARE):
            ground.housekeeper.serve(kind, delivery.tidy)
        stores = (providers.make_device_store(settings),) if ground.log.is_durable else ()
        devices = tuple(DeviceDelivery(base.hub, store, settings.device) for store in stores)
        own_devices = next(iter(devices), None)
        dispatcher = Dispatcher(
            base.hub,
            ground.log,
            base.names.ingest_topic,
            delivery.make_again,
            devices=own_devices,
            group=base.names.dispatch_group,
        )
        overview = ApplicationOverview(delivery, ground.log)
        feeds = ShareFeeds(dispatcher, delivery.shared, ground.log, base.names.ingest_topic, elsewhere)
        dispatch = PersistentDispatch(dispatcher)
        kinds = (
            ApplicationSubscriber(delivery, overview, dispatcher, feeds.sharing),
            *(
                DeviceSubscriber(each, ground.keeper.connected_until, is_remote=store.is_remote)
                for each, store in zip(devices, stores, strict=True)
            ),
            dispatch,
            TypeChange(
                base.hub,
                dispatcher,
                delivery=delivery,
                overview=overview,
                devices=own_devices,
                on_type=lambda session: ground.keeper.keep(session, session.client_type, matters=False),
            ),
        )
        return cls(delivery, overview, stores, devices, dispatcher, feeds, dispatch, kinds)

    def moves(self, kinds: Kinds) -> SessionMoves:
        return SessionMoves(kinds, self.dispatcher, self.dispatch, self.feeds, self.delivery.shared)

    @property
    def has_own_queues(self) -> bool:
        """Whether messages wait for DEVICE clients where no other node can read them."""
        return not any(store.is_shared for store in self.stores)
