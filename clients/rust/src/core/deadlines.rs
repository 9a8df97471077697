//! Due times of requests, tickets and the link in one order, so that one timer is enough.

use super::requests::RequestKey;
use super::tickets::TicketKey;
use std::collections::BTreeMap;

/// A time that does not come.
pub(crate) const NEVER: i64 = i64::MAX;

/// What can be due.
#[derive(Clone, Copy)]
pub(crate) enum Owner {
    Request(RequestKey),
    Ticket(TicketKey),
    Link,
    Close,
}

/// What something that can be due has in it: its place in the order, if it has one.
#[derive(Default)]
pub(crate) struct Alarm(Option<(i64, u64)>);

impl Alarm {
    pub(crate) fn due_ns(&self) -> i64 {
        self.0.map_or(NEVER, |(due_ns, _)| due_ns)
    }
}

#[derive(Default)]
pub(crate) struct Deadlines {
    owners: BTreeMap<(i64, u64), Owner>,
    sets: u64,
}

impl Deadlines {
    /// Makes an owner due at a time; whatever was set before is void.
    pub(crate) fn set(&mut self, alarm: &mut Alarm, owner: Owner, due_ns: i64) {
        self.clear(alarm);
        if due_ns != NEVER {
            self.sets += 1;
            alarm.0 = Some((due_ns, self.sets));
            self.owners.insert((due_ns, self.sets), owner);
        }
    }

    pub(crate) fn clear(&mut self, alarm: &mut Alarm) {
        if let Some(place) = alarm.0.take() {
            self.owners.remove(&place);
        }
    }

    /// The earliest due time, or [`NEVER`].
    pub(crate) fn next_ns(&self) -> i64 {
        self.owners.first_key_value().map_or(NEVER, |((due_ns, _), _)| *due_ns)
    }

    /// Takes out the earliest owner that is due. Its alarm still names the place, which nothing has any more.
    pub(crate) fn pop_due(&mut self, now_ns: i64) -> Option<Owner> {
        if self.next_ns() > now_ns {
            return None;
        }
        self.owners.pop_first().map(|(_, owner)| owner)
    }
}
