//! In which order and rhythm endpoints are tried.

use super::requests::NS_PER_MS;
use super::urls::Endpoint;
use crate::errors::{Error, Kind};
use crate::wire::constants_gen::{CLIENT_BACKOFF_JITTER_PERCENT, CLIENT_BACKOFF_MS_MAX, CLIENT_BACKOFF_MS_MIN};
use crate::wire::sha256::sha256;
use std::collections::VecDeque;

/// 50 ms doubling to 1 s, each spread by half in both directions. The spread comes from the seed, so
/// that a client given the same seed behaves the same.
pub(crate) struct Backoff {
    seed: [u8; 16],
    drawn: u64,
    step: u32,
}

impl Backoff {
    pub(crate) fn new(seed: [u8; 16]) -> Self {
        Self { seed, drawn: 0, step: 0 }
    }

    /// The next round starts at once.
    pub(crate) fn reset(&mut self) {
        self.step = 0;
    }

    /// How long to wait before the next round; the first after a reset does not wait.
    pub(crate) fn next_ns(&mut self) -> i64 {
        let step = self.step;
        self.step += 1;
        if step == 0 {
            return 0;
        }
        let base_ms = (i64::from(CLIENT_BACKOFF_MS_MIN) << (step - 1).min(16)).min(i64::from(CLIENT_BACKOFF_MS_MAX));
        self.drawn += 1;
        let digest = sha256(&[&self.seed, b"back-off", &self.drawn.to_be_bytes()]);
        let drawn = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
        let base_ns = base_ms * NS_PER_MS;
        let spread_ns = base_ns * i64::from(CLIENT_BACKOFF_JITTER_PERCENT) / 100;
        base_ns - spread_ns + ((2 * spread_ns * i64::from(drawn >> 8)) >> 24)
    }
}

/// Goes over the endpoints: the leader named last first, then the list, the lost one last.
#[derive(Default)]
pub(crate) struct Rounds {
    endpoints: Vec<Endpoint>,
    leader: Option<Endpoint>,
    named_by: Option<Endpoint>,
    pub(crate) lost: Option<Endpoint>,
    tried: Vec<Endpoint>,
    queue: VecDeque<Endpoint>,
    failures: Vec<(Endpoint, Error)>,
    /// A server has proved itself in this round, whatever its role.
    pub(crate) welcomed: bool,
    retried: bool,
}

impl Rounds {
    pub(crate) fn new(endpoints: Vec<Endpoint>) -> Self {
        Self { endpoints, ..Self::default() }
    }

    /// Whether the URL names several endpoints; attempts are shorter then.
    pub(crate) fn several(&self) -> bool {
        self.endpoints.len() > 1
    }

    /// Starts a round.
    pub(crate) fn begin(&mut self) {
        self.tried.clear();
        self.failures.clear();
        self.welcomed = false;
        self.retried = false;
        let lost = self.lost.as_ref();
        let others = self.endpoints.iter().filter(|endpoint| Some(*endpoint) != lost);
        let last = self.endpoints.iter().filter(|endpoint| Some(*endpoint) == lost);
        self.queue = self.leader.iter().chain(others).chain(last).cloned().collect();
    }

    /// The endpoint to try now, each once per round; none at the round's end.
    pub(crate) fn next(&mut self) -> Option<Endpoint> {
        while let Some(endpoint) = self.queue.pop_front() {
            if !self.tried.contains(&endpoint) {
                self.tried.push(endpoint.clone());
                return Some(endpoint);
            }
        }
        None
    }

    /// Rules out an endpoint for this round.
    pub(crate) fn failed(&mut self, endpoint: Endpoint, error: Error) {
        self.failures.push((endpoint, error));
    }

    /// A server said who leads, or that it knows no leader; the rest of this round begins there.
    pub(crate) fn leader_named(&mut self, leader: Option<Endpoint>, by: Endpoint) {
        if let Some(leader) = &leader {
            self.queue.push_front(leader.clone());
        }
        self.leader = leader;
        self.named_by = Some(by);
    }

    /// Makes an endpoint count as untried, for a node that has just become leader or learned of one:
    /// one time per round, so that two nodes that name each other end.
    pub(crate) fn try_again(&mut self, endpoint: Option<&Endpoint>) {
        if let Some(endpoint) = endpoint {
            if !self.retried {
                self.retried = true;
                self.tried.retain(|tried| tried != endpoint);
            }
        }
    }

    /// A node refused to serve, so that the next round need not begin there.
    pub(crate) fn does_not_lead(&mut self, endpoint: Option<&Endpoint>) {
        if self.leader.as_ref() == endpoint {
            self.leader = None;
        }
    }

    /// What a round without success amounts to, each endpoint named with its error.
    pub(crate) fn result(&self) -> Error {
        let mut parts = Vec::new();
        for (endpoint, error) in &self.failures {
            let mut part = format!("{endpoint}: {error}");
            if let (Some(leader), Some(by)) = (&self.leader, &self.named_by) {
                if leader == endpoint && !self.endpoints.contains(endpoint) {
                    part += &format!(
                        " (named as the leader by {by}; if it can't be reached from here, check the setting \
                         --advertise of that server)"
                    );
                }
            }
            parts.push(part);
        }
        let text = if parts.is_empty() { "no endpoint was left to try".to_owned() } else { parts.join("; ") };
        let auth = self.failures.iter().any(|(_, error)| error.kind() == Kind::Auth);
        if auth && !self.welcomed {
            return Error::new(Kind::Auth, format!("no server took this client: {text}"));
        }
        Error::new(Kind::Connection, format!("no server could be reached: {text}"))
    }
}
