//! Which transactions were applied, so that one that is in the log twice is applied once.
//!
//! A client that does not know what became of a transaction tries it again under the same id. Whether a record is the first
//! of its id is decided by the records before it in the stream and by nothing else, so every view decides alike.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::limits;
use crate::record::TxId;

/// What is remembered of one client.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
struct Client {
    /// It tries nothing below this again.
    settled: u64,
    /// What was applied from there on, in ascending order.
    applied: VecDeque<u64>,
    /// The number, among all records, of the first of its latest ones in a row.
    last: u64,
}

impl Client {
    /// Notes a request. False if it was noted before.
    fn note(&mut self, request: u64) -> bool {
        let at = match self.applied.back() {
            Some(&last) if last >= request => self.applied.partition_point(|&noted| noted < request),
            // Most come in their order.
            _ => self.applied.len(),
        };
        let is_new = self.applied.get(at) != Some(&request);
        if is_new {
            self.applied.insert(at, request);
        }
        is_new
    }
}

/// The requests that were applied, of as many clients as are remembered.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(from = "Stored")]
pub(crate) struct Requests {
    clients: BTreeMap<u64, Client>,
    /// Clients by the numbers of their last records.
    by_last: BTreeMap<u64, u64>,
    records: u64,
    /// The numbers of all clients that are not settled.
    #[serde(skip)]
    applied: usize,
}

/// What checkpoints have of it.
#[derive(Deserialize)]
struct Stored {
    clients: BTreeMap<u64, Client>,
    by_last: BTreeMap<u64, u64>,
    records: u64,
}

impl From<Stored> for Requests {
    fn from(Stored { clients, by_last, records }: Stored) -> Self {
        let applied = clients.values().map(|client| client.applied.len()).sum();
        Self { clients, by_last, records, applied }
    }
}

impl Requests {
    /// Notes the record of `id`, whose client tries nothing below `settled` again. False if it was applied before.
    pub(crate) fn note(&mut self, id: TxId, settled: u64) -> bool {
        self.records += 1;
        let client = self.clients.entry(id.client).or_default();
        if id.request < client.settled || !client.note(id.request) {
            return false;
        }
        self.applied += 1;
        if settled > client.settled {
            client.settled = settled;
            while client.applied.front().is_some_and(|&request| request < settled) {
                client.applied.pop_front();
                self.applied -= 1;
            }
        }
        // The order stays as it is while the latest one goes on.
        if self.by_last.last_key_value() != Some((&client.last, &id.client)) {
            self.by_last.remove(&client.last);
            client.last = self.records;
            self.by_last.insert(self.records, id.client);
        }
        self.forget();
        true
    }

    /// Forgets those clients of whom there are too many, or whose numbers are too many: of one that was given up, numbers stay above what it
    /// has settled. The latest is never one of them.
    fn forget(&mut self) {
        while (self.clients.len() > limits::CLIENTS_MAX_COUNT || self.applied > limits::UNSETTLED_MAX_COUNT)
            && self.by_last.len() > 1
            && let Some((_, oldest)) = self.by_last.pop_first()
            && let Some(client) = self.clients.remove(&oldest)
        {
            self.applied -= client.applied.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_the_first_of_its_number_once_in_whatever_order_they_come() {
        let mut requests = Requests::default();
        let mut note = |client, request, settled| requests.note(TxId { client, request }, settled);
        assert!(note(1, 0, 0) && note(1, 2, 0) && note(1, 1, 0));
        assert!(!note(1, 2, 0) && !note(1, 0, 0));
        assert!(note(2, 0, 0), "another client's");
        assert!(note(1, 3, 3), "all below three are settled");
        assert!(!note(1, 1, 1), "and stay applied");
    }

    #[test]
    fn clients_are_forgotten_in_the_order_of_their_last_records() {
        let mut requests = Requests::default();
        for client in 0..limits::CLIENTS_MAX_COUNT as u64 {
            assert!(requests.note(TxId { client, request: 0 }, 0));
        }
        assert!(requests.note(TxId { client: 0, request: 1 }, 0));
        assert!(requests.note(TxId { client: u64::MAX, request: 0 }, 0), "one more than are remembered");
        assert!(!requests.note(TxId { client: 0, request: 1 }, 0), "of whom there was news");
        assert!(requests.note(TxId { client: 1, request: 0 }, 0), "the oldest is forgotten");
        assert_eq!(requests.clients.len(), limits::CLIENTS_MAX_COUNT);
        assert_eq!(requests.clients.len(), requests.by_last.len());
    }

    #[test]
    fn clients_that_were_given_up_with_much_unsettled_are_forgotten_also_by_who_reads_a_checkpoint() {
        // Each leaves what it never settled in every checkpoint.
        let each = limits::REQUESTS_AHEAD_MAX;
        let most = limits::UNSETTLED_MAX_COUNT as u64 / each;
        let mut requests = Requests::default();
        for client in 0..=most {
            for request in 0..each {
                assert!(requests.note(TxId { client, request }, 0));
            }
            if client == most / 2 {
                let stored = rmp_serde::to_vec_named(&requests).expect("it encodes");
                let restored: Requests = rmp_serde::from_slice(&stored).expect("it is what was encoded");
                assert_eq!(restored, requests);
                requests = restored;
            }
        }
        assert_eq!(requests.clients.len() as u64, most, "the oldest is forgotten");
        let counted: usize = requests.clients.values().map(|client| client.applied.len()).sum();
        assert_eq!((counted as u64, requests.by_last.len() as u64), (most * each, most));
        assert!(!requests.note(TxId { client: 1, request: 0 }, 0), "the others are not");
        assert!(requests.note(TxId { client: most, request: each }, each), "what is settled takes no room");
        assert_eq!(requests.clients[&most].applied.len(), 1);
    }
}
