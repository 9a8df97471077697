//! Releasing.

use super::arguments::quoted;
use super::effects::{Call, Value};
use super::giving_up::duration;
use super::requests::{Request, RequestKey, NS_PER_MS};
use super::tickets::{Release, State, TicketKey};
use super::Core;
use crate::errors::{Error, Kind, LostReason};
use crate::events::Event;
use crate::wire::constants_gen::{CLIENT_RELEASE_BOUND_MS_MIN, OP_RELEASE};
use crate::wire::requests as frames;

impl Core {
    /// Releases once; every further call gets what the first one gets.
    pub(crate) fn release_ticket(&mut self, key: TicketKey, call: Option<Call>, now_ns: i64) {
        let is_lost = self.lose_if_over(key, now_ns);
        let ticket = &mut self.tickets[key];
        let outcome = match (&mut ticket.release, ticket.state) {
            (Release::Unanswered(calls), _) => {
                calls.extend(call);
                return;
            }
            (Release::Ended, _) => ticket.release_error.clone().map_or(Ok(()), Err),
            (Release::NotAsked, _) if is_lost && ticket.gone => Err(self.lost_error(key)),
            (Release::NotAsked, State::ClientClosed) => Err(self.ticket_closed(key)),
            (Release::NotAsked, State::Held | State::Lost | State::Confirming) => {
                ticket.release = Release::Unanswered(call.into_iter().collect());
                self.send_release(key, now_ns);
                return;
            }
            (Release::NotAsked, _) => Ok(()),
        };
        self.settle_call(call, outcome);
    }

    fn send_release(&mut self, key: TicketKey, now_ns: i64) {
        let ticket = &mut self.tickets[key];
        ticket.uses += 1; // The request.
        if ticket.state == State::Lost {
            let token = ticket.token;
            if self.expired.take(token).is_some() {
                self.let_go(key);
            }
            self.tickets[key].release_error = Some(self.lost_error(key));
        } else {
            self.leave(key, State::Releasing);
            let error = Error::new(Kind::NotHeld, format!("{} was released", quoted(&self.tickets[key].shown_keys)));
            self.fail_deferred(key, &error);
        }
        let mut request = Request::new(OP_RELEASE, None, now_ns);
        request.ticket = Some(key);
        let fake = self.tickets[key].fake;
        if !fake {
            request.id = self.take_id();
            let ticket = &self.tickets[key];
            request.frame = frames::release(request.id, ticket.token, &ticket.keys[0]);
        }
        let request = self.requests.insert(request);
        if fake {
            self.release_answered(request, true, now_ns);
            return;
        }
        let least_ns = now_ns + i64::from(CLIENT_RELEASE_BOUND_MS_MIN) * NS_PER_MS;
        self.set_bound(request, self.tickets[key].expires_ns.max(least_ns));
        self.issue(request, now_ns);
    }

    /// R, or N; an N after an earlier sending only says that the earlier one did it.
    pub(super) fn release_answered(&mut self, key: RequestKey, by_r: bool, now_ns: i64) {
        let request = &self.requests[key];
        if request.settled {
            return;
        }
        if by_r || request.sendings > 1 {
            self.release_ended(key, None, now_ns);
            return;
        }
        let Some(ticket) = request.ticket else { return };
        self.tickets[ticket].lost_reason.get_or_insert(LostReason::NotHeld);
        let error = self.lost_error(ticket);
        self.release_ended(key, Some(error), now_ns);
    }

    /// Tells everybody who waits for this release; a ticket that was lost before stays lost.
    pub(super) fn release_ended(&mut self, key: RequestKey, error: Option<Error>, now_ns: i64) {
        let Some(ticket) = self.requests[key].ticket else { return };
        self.settle(key, Ok(Value::Nothing));
        let held = &mut self.tickets[ticket];
        if held.release_error.is_none() {
            held.release_error = error;
        }
        let calls = match std::mem::replace(&mut held.release, Release::Ended) {
            Release::Unanswered(calls) => calls,
            Release::NotAsked | Release::Ended => Vec::new(),
        };
        let outcome = held.release_error.clone().map_or(Ok(()), Err);
        if held.state == State::Releasing {
            held.state = State::Released;
            if outcome.is_ok() {
                let (keys, token) = (held.shown_keys.clone(), held.token);
                let held_for = duration(now_ns - held.granted_ns);
                self.notify(|| Event::Released { keys: keys.to_vec(), token, held: held_for });
            }
        }
        for call in calls {
            self.settle_call(Some(call), outcome.clone());
        }
    }
}
