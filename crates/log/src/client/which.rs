//! Which cluster a client is of: the one that its endpoints tell of.
//!
//! The first answer does not say it alone. A list may name servers of two clusters, and commands would go to the one or the other by chance: then
//! the client fails. And a server of another cluster may listen where a node of this one did; this one's layout lists the address, so that what
//! is told there does not count beside it. So what an endpoint tells is taken as soon as its layout lists every endpoint that has not answered;
//! for others it waits a little. From then on nothing is taken from another cluster, and nobody fails because of one.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use ithaca_env::Time;

use super::error::ClientError;
use super::view::View;
use crate::pos::ClusterId;

/// How long after the first layout others are waited for.
const PATIENCE: Duration = Duration::from_millis(100);

/// What endpoints have told while the client had no cluster, and what came of it.
#[derive(Default)]
pub(super) struct Choice {
    /// Who has told which layout, in the order in which that came.
    told: Vec<(SocketAddr, View)>,
    /// Endpoints that have answered, or failed to.
    heard: BTreeSet<SocketAddr>,
    /// When it is made at the latest.
    until: Option<Time>,
    /// The cluster, or that there are two.
    made: Option<Result<ClusterId, ClientError>>,
}

impl Choice {
    /// The cluster, or that there are two; `None` as long as it is open.
    pub(super) fn made(&self) -> Option<Result<ClusterId, ClientError>> {
        self.made.clone()
    }

    /// The cluster, if it is known.
    pub(super) fn cluster(&self) -> Option<ClusterId> {
        self.made.as_ref()?.as_ref().ok().copied()
    }

    /// Whoever listens at `addr` has answered, or failed to.
    pub(super) fn hear(&mut self, addr: SocketAddr) {
        self.heard.insert(addr);
    }

    /// The node at `addr` has told its layout. Returns when the choice is to be made at the latest.
    pub(super) fn tell(&mut self, addr: SocketAddr, view: &View, now: Time) -> Time {
        self.told.push((addr, view.clone()));
        *self.until.get_or_insert(now + PATIENCE)
    }

    /// Makes the choice, if all is known that it takes, or the time for it `is_over`.
    pub(super) fn make(
        &mut self,
        endpoints: &[SocketAddr],
        lookups: usize,
        is_over: bool,
    ) -> Option<Result<ClusterId, ClientError>> {
        if self.made.is_none() {
            self.made = self.find(endpoints, lookups, is_over);
            if self.made.is_some() {
                self.told.clear();
            }
        }
        self.made()
    }

    fn find(
        &self,
        endpoints: &[SocketAddr],
        lookups: usize,
        is_over: bool,
    ) -> Option<Result<ClusterId, ClientError>> {
        let awaits = |lists: &dyn Fn(SocketAddr) -> bool| {
            let is_awaited = |addr: &SocketAddr| !self.heard.contains(addr) && !lists(*addr);
            !is_over && (lookups > 0 || endpoints.iter().any(is_awaited))
        };
        let mut two = None;
        for (addr, view) in &self.told {
            let cluster = view.layout.cluster;
            let lists = |addr| view.nodes().any(|(_, at)| at == addr);
            let is_other = |(at, other): &&(_, View)| other.layout.cluster != cluster && !lists(*at);
            match self.told.iter().find(is_other) {
                Some((at, other)) => {
                    two.get_or_insert([(cluster, *addr), (other.layout.cluster, *at)]);
                }
                None if !awaits(&lists) => return Some(Ok(cluster)),
                None => {}
            }
        }
        let clusters = two.filter(|_| !awaits(&|_| false))?;
        Some(Err(ClientError::TwoClusters { clusters: Box::new(clusters) }))
    }
}
