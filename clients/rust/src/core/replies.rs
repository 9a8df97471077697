//! What each reply of the server does to the request or the ticket that it is about.

use super::arguments::{quoted, sanitised};
use super::effects::Value;
use super::requests::{Purpose, ACQUIRES, ANY};
use super::{Broken, Core};
use crate::errors::{Error, Kind, LostReason};
use crate::wire::constants_gen::{
    error, DROP_LEASE_OVER, DROP_OPERATOR, ERROR_BAD_FRAME, ERROR_FORBIDDEN, ERROR_LEASE_TOO_LONG, ERROR_NOT_SERVING,
    OP_CANCEL, OP_EXTEND, OP_PING, OP_RELEASE, REPLY_CANCELLED, REPLY_DROPPED, REPLY_ERROR, REPLY_EXTENDED,
    REPLY_GRANTED, REPLY_NOT_HELD, REPLY_OVERLOADED, REPLY_PING, REPLY_RELEASED, REPLY_TIMED_OUT, WAIT_MS_TRY,
};
use crate::wire::replies::{check_drop_reason, Reply};

impl Core {
    /// Carries out one reply. Tells whether the connection has to be left for another, and fails for
    /// what can't be a reply.
    pub(super) fn read_reply(&mut self, reply: &Reply<'_>, now_ns: i64) -> Result<bool, Broken> {
        match reply.op {
            REPLY_GRANTED => self.read_granted(reply, now_ns)?,
            REPLY_TIMED_OUT => self.read_timed_out(reply, now_ns)?,
            REPLY_OVERLOADED => {
                let key = self.answered(reply.id, ACQUIRES)?;
                let keys = quoted(&self.requests[key].shown_keys);
                self.fail(key, Error::new(Kind::Overloaded, format!("the server has no room for {keys} now")));
            }
            REPLY_RELEASED => {
                let key = self.answered(reply.id, &[OP_RELEASE])?;
                self.release_answered(key, true, now_ns);
            }
            REPLY_NOT_HELD => self.read_not_held(reply, now_ns)?,
            REPLY_EXTENDED => self.read_extended(reply, now_ns)?,
            REPLY_CANCELLED => {
                let key = self.answered(reply.id, &[OP_CANCEL])?;
                let acquire_id = self.requests[key].acquire_id;
                self.forget(acquire_id);
                self.settle(key, Ok(Value::Nothing));
            }
            REPLY_DROPPED => {
                check_drop_reason(reply.code)?;
                let reason = match reply.code {
                    DROP_LEASE_OVER => LostReason::LeaseOver,
                    DROP_OPERATOR => LostReason::Operator,
                    _ => LostReason::OtherClient,
                };
                self.ticket_dropped(reply.token, reason);
            }
            REPLY_PING => {
                let key = self.answered(reply.id, &[OP_PING])?;
                self.settle(key, Ok(Value::Nothing));
            }
            REPLY_ERROR => return self.read_error(reply, now_ns),
            op => return Err(Broken::new(format!("a frame {} after the handshake", char::from(op)))),
        }
        Ok(false)
    }

    fn read_granted(&mut self, reply: &Reply<'_>, now_ns: i64) -> Result<(), Broken> {
        if reply.token == 0 || self.held.contains_key(&reply.token) {
            return Err(Broken::new(format!("token {}, which no new ticket can have", reply.token)));
        }
        let key = self.answered(reply.id, ACQUIRES)?;
        if !self.requests[key].settled {
            self.granted(key, reply.token, reply.ms, now_ns);
        } // If it was given up, its cancel is on the way and releases the ticket.
        Ok(())
    }

    fn read_timed_out(&mut self, reply: &Reply<'_>, now_ns: i64) -> Result<(), Broken> {
        let key = self.answered(reply.id, ACQUIRES)?;
        let request = &self.requests[key];
        if request.settled {
            return Ok(());
        }
        let error = if request.wait_ms == WAIT_MS_TRY {
            Error::new(Kind::Held, format!("{} is held", quoted(&request.shown_keys)))
        } else {
            self.tell_timed_out(key, now_ns)
        };
        self.fail(key, error);
        Ok(())
    }

    fn read_not_held(&mut self, reply: &Reply<'_>, now_ns: i64) -> Result<(), Broken> {
        let key = self.answered(reply.id, &[OP_RELEASE, OP_EXTEND])?;
        let request = &self.requests[key];
        if request.op == OP_RELEASE {
            self.release_answered(key, false, now_ns);
        } else if request.purpose == Purpose::Adopting {
            let text = format!("no ticket with token {} has {}", request.token, quoted(&request.shown_keys));
            self.fail(key, Error::new(Kind::NotHeld, text));
        } else {
            self.extend_refused(key, now_ns);
        }
        Ok(())
    }

    fn read_extended(&mut self, reply: &Reply<'_>, now_ns: i64) -> Result<(), Broken> {
        let key = self.answered(reply.id, &[OP_EXTEND])?;
        if self.requests[key].purpose != Purpose::Adopting {
            self.extend_answered(key, reply.ms, now_ns);
        } else if !self.requests[key].settled {
            self.adopted(key, reply.ms, now_ns);
        }
        Ok(())
    }

    fn read_error(&mut self, reply: &Reply<'_>, now_ns: i64) -> Result<bool, Broken> {
        let kind = match reply.code {
            ERROR_NOT_SERVING => {
                self.match_reply(reply.id, ANY)?;
                return Ok(true); // It stays unanswered: nothing was done.
            }
            ERROR_BAD_FRAME => Kind::Protocol,
            ERROR_LEASE_TOO_LONG => Kind::InvalidArgument,
            ERROR_FORBIDDEN => Kind::Auth,
            code => {
                let name = error(code).map_or("", |row| row.0);
                return Err(Broken::new(format!("{name} about request {}", reply.id)));
            }
        };
        let key = self.answered(reply.id, ANY)?;
        let refused = Error::new(kind, said(reply.code, reply.tail));
        let request = &self.requests[key];
        match request.op {
            OP_RELEASE if request.settled => {}
            OP_RELEASE => self.release_ended(key, Some(refused), now_ns),
            OP_EXTEND if request.ticket.is_some() => self.extend_failed(key, refused, now_ns),
            _ => self.fail(key, refused),
        }
        Ok(reply.code == ERROR_BAD_FRAME)
    }
}

/// What an E says, for people.
pub(super) fn said(code: u8, text: &[u8]) -> String {
    let name = error(code).map_or("", |row| row.0);
    if text.is_empty() {
        name.to_owned()
    } else {
        format!("{name}: {}", sanitised(text))
    }
}
