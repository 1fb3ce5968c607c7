//! The group's coordinator: finding it, keeping up with its moves, asking it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cursus_wire::command::FindCoordinator;
use cursus_wire::{Group, Meaning, Request};

use super::address::Address;
use super::link::{CallError, Link, Still};
use super::links::{Links, Purpose};
use crate::health::{Health, Part};

/// How many redirects are followed before the cluster counts as unsure of itself.
const REDIRECTS: usize = 4;

pub(crate) struct Coordinator {
    group: Group,
    links: Arc<Links>,
    health: Arc<Health>,
    membership_timeout: Duration,
    address: Mutex<Option<Address>>,
    /// Held while somebody looks for it: the others wait for what is found.
    finding: tokio::sync::Mutex<()>,
}

impl Coordinator {
    pub(crate) fn new(group: Group, links: Arc<Links>, health: Arc<Health>, membership_timeout: Duration) -> Self {
        Self {
            group,
            links,
            health,
            membership_timeout,
            address: Mutex::new(None),
            finding: tokio::sync::Mutex::new(()),
        }
    }

    fn known(&self) -> Option<Address> {
        self.address.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, address: Option<Address>) {
        self.health.facts().coordinator = address.as_ref().map(ToString::to_string);
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }

    /// The link to the coordinator, where it is known; nothing is looked up.
    pub(crate) fn link(&self) -> Option<Link> {
        self.known().map(|address| self.links.control(&address, Purpose::Membership))
    }

    async fn find(&self) -> Result<Address, CallError> {
        let _finding = self.finding.lock().await;
        if let Some(address) = self.known() {
            return Ok(address);
        }
        let (found, speaker) = self.links.ask_any(&FindCoordinator { group: self.group.clone() }).await?;
        let address = Address::new(found.host, found.port).seen_from(&speaker);
        self.set(Some(address.clone()));
        Ok(address)
    }

    /// Asks the coordinator, wherever it is. Redirects are followed, with an address in them or without.
    pub(crate) async fn call<R: Request>(&self, request: &R) -> Result<R::Reply, CallError> {
        self.call_for(Purpose::Questions, request, None).await
    }

    /// The same, where it is still right once it can be written.
    pub(crate) async fn call_while<R: Request>(&self, request: &R, still: Still) -> Result<R::Reply, CallError> {
        self.call_for(Purpose::Questions, request, Some(still)).await
    }

    /// The same for what keeps the membership alive: on a link of its own, and within a third of a session, so that there is
    /// time for another try.
    pub(crate) async fn call_as_member<R: Request>(&self, request: &R) -> Result<R::Reply, CallError> {
        self.call_for(Purpose::Membership, request, None).await
    }

    async fn call_for<R: Request>(
        &self,
        purpose: Purpose,
        request: &R,
        still: Option<Still>,
    ) -> Result<R::Reply, CallError> {
        let result = self.call_unreported(purpose, request, still).await;
        match &result {
            Err(CallError::Withdrawn(_)) => {}
            Err(CallError::Unsent(why) | CallError::Lost(why) | CallError::Corrupt(why)) => {
                self.health.unreachable(Part::Coordinator, why);
            }
            // It answers, and knows what it is talking about.
            Ok(_) => self.health.recovered(&Part::Coordinator),
            Err(CallError::Refused(error)) => match error.meaning() {
                Meaning::GenerationMismatch { .. }
                | Meaning::MemberNotFound
                | Meaning::NotOwner
                | Meaning::OffsetRegression
                | Meaning::OtherTopic { .. } => self.health.recovered(&Part::Coordinator),
                _ => self.health.trouble(Part::Coordinator, &error.to_string()),
            },
        }
        result
    }

    async fn call_unreported<R: Request>(
        &self,
        purpose: Purpose,
        request: &R,
        still: Option<Still>,
    ) -> Result<R::Reply, CallError> {
        let mut last = String::new();
        for _ in 0..REDIRECTS {
            let address = match self.known() {
                Some(address) => address,
                None => self.find().await?,
            };
            let link = self.links.control(&address, purpose);
            let answer = match (purpose, still.clone()) {
                (_, Some(still)) => link.call_while(request, still).await,
                (Purpose::Membership, None) => link.call_within(request, self.membership_timeout).await,
                (Purpose::Questions, None) => link.call(request, Duration::ZERO).await,
            };
            match answer {
                Err(CallError::Refused(error)) => match error.meaning() {
                    Meaning::NotCoordinator(hint) => {
                        last = error.to_string();
                        let hint = hint.map(|(host, port)| Address::new(host, port).seen_from(&address));
                        // Being sent to where we already are is not progress: ask anew.
                        self.set(hint.filter(|hint| *hint != address));
                    }
                    _ => return Err(CallError::Refused(error)),
                },
                Err(withdrawn @ CallError::Withdrawn(_)) => return Err(withdrawn),
                Err(error) => {
                    // It may have moved: the next request asks where it is.
                    self.set(None);
                    return Err(error);
                }
                Ok(reply) => return Ok(reply),
            }
        }
        Err(CallError::Unsent(format!("the brokers send us around in circles: {last}")))
    }
}

/// Whether an answer says that the group can't be served just now.
pub(crate) fn is_passing(meaning: &Meaning) -> bool {
    matches!(meaning, Meaning::Transient | Meaning::NotCoordinator(_) | Meaning::NotLeader(_))
}
