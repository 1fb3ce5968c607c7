//! What a test does to the brokers' connections and addresses.

use std::time::Duration;

use crate::watch;

use crate::cluster::{Cluster, check_broker};
use crate::error::ControlError;
use crate::options::LONGEST;
use crate::shared::{Broker, Endpoint, State};

impl Cluster {
    /// Cuts all connections of one broker, or of all: at once, replies in flight are lost, new ones are accepted.
    ///
    /// # Errors
    ///
    /// No such broker.
    pub fn cut_connections(&self, broker: Option<usize>) -> Result<(), ControlError> {
        self.shared().change(|state| {
            chosen(state, broker)?.for_each(cut);
            Ok(())
        })
    }

    /// Silences all connections that one broker has, or all have, for ever: what they send isn't read any more, what they
    /// wait for isn't answered, and they stay open, as where a host vanished from the network or a router forgot them.
    /// New connections work. A frozen one ends with its broker, or by [`Cluster::cut_connections`].
    ///
    /// # Errors
    ///
    /// No such broker.
    pub fn freeze_connections(&self, broker: Option<usize>) -> Result<(), ControlError> {
        let switches: Vec<watch::Sender<bool>> = self.shared().read(|state| {
            let links = chosen(state, broker)?.flat_map(|broker| broker.connections.values());
            Ok(links.map(|link| link.freeze.clone()).collect())
        })?;
        // Not under the lock: this waits for what a connection is just doing, which may take the lock.
        for switch in switches {
            switch.send_replace(true);
        }
        self.shared().changed();
        Ok(())
    }

    /// Writes every reply of one broker, or of all, this much later than it could, in order, and what a stream sends
    /// too; it is carried out without a delay. With zero, later replies follow at once behind those that are on their
    /// way. The time is the cluster's (see [`Cluster::advance`]); more than ten years count as ten.
    ///
    /// # Errors
    ///
    /// No such broker.
    pub fn delay(&self, broker: Option<usize>, delay: Duration) -> Result<(), ControlError> {
        self.shared().change(|state| {
            for broker in chosen(state, broker)? {
                broker.delay.send_replace(delay.min(LONGEST));
            }
            Ok(())
        })
    }

    /// Lets METADATA, FIND_COORDINATOR and redirects name this `host:port` for a broker, whoever answers there, if
    /// anybody does. With `None` they name where it listens again. It goes on listening where it does.
    ///
    /// # Errors
    ///
    /// No such broker, or an address that isn't `host:port`.
    pub fn advertise(&self, broker: usize, address: Option<&str>) -> Result<(), ControlError> {
        let endpoint = address.map(Endpoint::parse).transpose()?;
        self.shared().change(|state| {
            check_broker(state, broker)?;
            if let Some(found) = state.brokers.get_mut(broker) {
                found.advertised = endpoint;
            }
            Ok(())
        })
    }

    /// Swaps the addresses of two brokers: each listens where the other did, as itself, as where a restarted host got
    /// the address that another one had before. Their connections are cut. [`Cluster::brokers`], METADATA and all
    /// redirects tell the new addresses, but for those that [`Cluster::advertise`] set, which stay.
    ///
    /// # Errors
    ///
    /// No such broker, or one of them is down.
    pub fn swap_addresses(&self, a: usize, b: usize) -> Result<(), ControlError> {
        self.shared().change(|state| {
            let door = |broker: usize| {
                check_broker(state, broker)?;
                let found = state.brokers.get(broker).and_then(|broker| broker.door.as_ref());
                found.map(|door| door.borrow().clone()).ok_or(ControlError::Down { broker })
            };
            let (door_of_a, door_of_b) = (door(a)?, door(b)?);
            if a == b {
                return Ok(());
            }
            let address = |broker: usize| state.brokers.get(broker).map(|broker| broker.address);
            let (address_of_a, address_of_b) = (address(a), address(b));
            for (broker, address, door) in [(a, address_of_b, door_of_b), (b, address_of_a, door_of_a)] {
                if let (Some(found), Some(address)) = (state.brokers.get_mut(broker), address) {
                    found.address = address;
                    found.door.iter().for_each(|mine| drop(mine.send_replace(door.clone())));
                    cut(found);
                }
            }
            Ok(())
        })
    }
}

fn cut(broker: &Broker) {
    broker.connections.values().for_each(|link| link.cut.cancel());
}

/// The broker that was named, or all.
fn chosen(state: &State, broker: Option<usize>) -> Result<impl Iterator<Item = &Broker>, ControlError> {
    if let Some(broker) = broker {
        check_broker(state, broker)?;
    }
    let is_chosen = move |(index, _): &(usize, &Broker)| broker.is_none_or(|broker| broker == *index);
    Ok(state.brokers.iter().enumerate().filter(is_chosen).map(|(_, broker)| broker))
}
