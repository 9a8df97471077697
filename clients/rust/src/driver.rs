//! Runs one core: the only part of the client that touches sockets. Callers enter the core under a lock
//! and never wait for the network there; one task moves the bytes, one watches the time.

use crate::clock::now_ns;
use crate::core::arguments::sanitised;
use crate::core::deadlines::NEVER;
use crate::core::effects::{lock, Call, Effect, End, EndCell};
use crate::core::urls::Endpoint;
use crate::core::Core;
use crate::dial::{why, Stream, Transport};
use crate::events::{Event, Level};
use std::collections::VecDeque;
use std::future::{poll_fn, Future};
use std::ops::Range;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{ready, Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{sleep, Instant};

const READ_BYTES: usize = 32 << 10;
/// A read of as much is handed to the core in two halves: while the callers of the second go on, the server works
/// for those of the first. In one piece the two sides would only ever wait for each other.
const HALVED_BYTES: usize = 256;
/// How large a buffer for output may stay.
const KEPT_BYTES: usize = 1 << 20;
/// Timers may stand still while the machine sleeps, but leases go on. So look now and then.
const LONGEST_SLEEP_NS: i64 = 1_000_000_000;

pub(crate) type EventHook = Box<dyn Fn(&Event) + Send + Sync>;
pub(crate) type LogHook = Box<dyn Fn(Level, &str) + Send + Sync>;

/// What the program gets to hear.
pub(crate) struct Hooks {
    pub(crate) on_event: Option<EventHook>,
    pub(crate) on_log: Option<LogHook>,
}

impl Hooks {
    pub(crate) fn log(&self, level: Level, text: &str) {
        match &self.on_log {
            Some(hook) => {
                // There is nobody left to tell of a log hook that panics.
                let _ = catch_unwind(AssertUnwindSafe(|| hook(level, text)));
            }
            None if level >= Level::Warn => eprintln!("ticketing: {text}"),
            None => {}
        }
    }
}

pub(crate) struct Driver {
    /// None for fake tickets, which never connect.
    runtime: Option<Handle>,
    transport: Transport,
    hooks: Hooks,
    inner: Mutex<Inner>,
    outbox: Mutex<Outbox>,
    tasks: Tasks,
}

/// What is entered by one at a time.
pub(crate) struct Inner {
    pub(crate) core: Core,
    connection: Option<Connection>,
    /// When the task that watches the time looks next.
    armed_ns: i64,
    timer: Option<Waker>,
    over: bool,
}

struct Connection {
    serial: u64,
    /// Wakes the task that writes; none while it does not wait for something to write.
    waker: Option<Waker>,
    abort: AbortHandle,
}

/// What is delivered to the program: in order, by one at a time, and outside of the lock, so that a hook
/// may call the client.
#[derive(Default)]
struct Outbox {
    queue: VecDeque<Delivery>,
    delivering: bool,
}

enum Delivery {
    Ready(Call),
    Ended(Arc<EndCell>, End),
    Notify(Event),
    Log(Level, String),
}

/// How many tasks there are, and who waits for there to be none.
#[derive(Default)]
struct Tasks(Mutex<(usize, Vec<Waker>)>);

/// One task, for as long as it or its future is there.
struct TaskGuard(Arc<Driver>);

impl TaskGuard {
    fn new(driver: &Arc<Driver>) -> Self {
        lock(&driver.tasks.0).0 += 1;
        Self(driver.clone())
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        let wakers = {
            let mut tasks = lock(&self.0.tasks.0);
            tasks.0 -= 1;
            if tasks.0 == 0 {
                std::mem::take(&mut tasks.1)
            } else {
                Vec::new()
            }
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Tells whoever waits when the runtime ends before the client does.
struct RuntimeGuard(Arc<Driver>);

impl Drop for RuntimeGuard {
    fn drop(&mut self) {
        self.0.enter(|inner, now_ns| {
            if !inner.over {
                inner.core.abort(now_ns);
            }
        });
    }
}

impl Driver {
    pub(crate) fn start(runtime: Handle, core: Core, transport: Transport, hooks: Hooks) -> Arc<Self> {
        let driver = Self::new(Some(runtime.clone()), core, transport, hooks);
        let guards = (RuntimeGuard(driver.clone()), TaskGuard::new(&driver));
        let watching = driver.clone();
        runtime.spawn(async move {
            let _guards = guards;
            watching.watch_time().await;
        });
        driver
    }

    /// Without a runtime nothing connects and no time is watched: for fake tickets.
    pub(crate) fn new(runtime: Option<Handle>, core: Core, transport: Transport, hooks: Hooks) -> Arc<Self> {
        let inner = Inner { core, connection: None, armed_ns: NEVER, timer: None, over: false };
        Arc::new(Self {
            runtime,
            transport,
            hooks,
            inner: Mutex::new(inner),
            outbox: Mutex::default(),
            tasks: Tasks::default(),
        })
    }

    pub(crate) fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    /// Calls into the core and carries out what it wants. Every entry into the core goes this way.
    pub(crate) fn enter<T>(self: &Arc<Self>, call: impl FnOnce(&mut Inner, i64) -> T) -> T {
        let mut inner = lock(&self.inner);
        let result = call(&mut inner, now_ns());
        inner.core.reap();
        let to_deliver = self.carry_out(&mut inner);
        let mut wakers = [None, None];
        if inner.core.has_output() {
            wakers[0] = inner.connection.as_mut().and_then(|connection| connection.waker.take());
        }
        let next_ns = inner.core.deadlines.next_ns();
        if inner.over || next_ns < inner.armed_ns {
            inner.armed_ns = next_ns;
            wakers[1] = inner.timer.take();
        }
        drop(inner);
        wakers.into_iter().flatten().for_each(Waker::wake);
        if to_deliver {
            self.deliver();
        }
        result
    }

    /// Does what is for the driver, and puts the rest into the outbox. Tells whether it did.
    fn carry_out(self: &Arc<Self>, inner: &mut Inner) -> bool {
        if inner.core.effects.is_empty() {
            return false;
        }
        let mut outbox = lock(&self.outbox);
        let mut effects = std::mem::take(&mut inner.core.effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Settled(call, outcome) => {
                    call.keep(outcome);
                    outbox.queue.push_back(Delivery::Ready(call));
                }
                Effect::Ended(cell, end) => outbox.queue.push_back(Delivery::Ended(cell, end)),
                Effect::Notify(event) => outbox.queue.push_back(Delivery::Notify(event)),
                Effect::Log(level, text) => outbox.queue.push_back(Delivery::Log(level, text)),
                Effect::Connect { serial, endpoint } => inner.connection = self.connect(serial, endpoint),
                Effect::Disconnect { serial } => inner.let_go(serial),
                Effect::Closed => inner.over = true,
            }
        }
        inner.core.effects = effects;
        !outbox.queue.is_empty()
    }

    fn deliver(&self) {
        let mut outbox = lock(&self.outbox);
        if outbox.delivering {
            return; // Who is at it sees what was added meanwhile.
        }
        outbox.delivering = true;
        while !outbox.queue.is_empty() {
            let mut batch = std::mem::take(&mut outbox.queue);
            drop(outbox);
            for delivery in batch.drain(..) {
                self.hand(delivery);
            }
            outbox = lock(&self.outbox);
            if outbox.queue.is_empty() {
                outbox.queue = batch; // Keeps its room.
            }
        }
        outbox.delivering = false;
    }

    fn hand(&self, delivery: Delivery) {
        match delivery {
            Delivery::Ready(call) => call.deliver(),
            Delivery::Ended(cell, end) => cell.deliver(end),
            Delivery::Log(level, text) => self.hooks.log(level, &text),
            Delivery::Notify(event) => {
                let Some(hook) = &self.hooks.on_event else { return };
                if catch_unwind(AssertUnwindSafe(|| hook(&event))).is_err() {
                    self.hooks.log(Level::Error, &format!("the event hook panicked at {}", event.kind()));
                }
            }
        }
    }

    // Time.

    async fn watch_time(self: Arc<Self>) {
        let mut timer = std::pin::pin!(sleep(Duration::ZERO));
        poll_fn(|cx| loop {
            let (over, wait_ns) = self.enter(|inner, now_ns| {
                inner.core.on_time(now_ns);
                inner.armed_ns = match inner.core.deadlines.next_ns() {
                    NEVER => NEVER,
                    next_ns => next_ns.min(now_ns + LONGEST_SLEEP_NS),
                };
                inner.timer = Some(cx.waker().clone());
                (inner.over, inner.armed_ns.saturating_sub(now_ns))
            });
            if over || lock(&self.inner).over {
                return Poll::Ready(());
            }
            if wait_ns > LONGEST_SLEEP_NS {
                return Poll::Pending; // Nothing is due until somebody says so.
            }
            let wait = Duration::from_nanos(u64::try_from(wait_ns).unwrap_or(0));
            timer.as_mut().reset(Instant::now() + wait);
            ready!(timer.as_mut().poll(cx));
        })
        .await;
    }

    /// Waits until no task of this client is left.
    pub(crate) async fn tasks_ended(&self) {
        poll_fn(|cx| {
            let mut tasks = lock(&self.tasks.0);
            if tasks.0 == 0 {
                return Poll::Ready(());
            }
            tasks.1.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    // The connection.

    fn connect(self: &Arc<Self>, serial: u64, endpoint: Endpoint) -> Option<Connection> {
        let runtime = self.runtime.as_ref()?;
        let guard = TaskGuard::new(self);
        let driver = self.clone();
        let task = runtime.spawn(async move {
            let _guard = guard;
            driver.run(serial, endpoint).await;
        });
        Some(Connection { serial, waker: None, abort: task.abort_handle() })
    }

    async fn run(self: Arc<Self>, serial: u64, endpoint: Endpoint) {
        let stream = match self.transport.open(&endpoint).await {
            Ok(stream) => stream,
            Err(reason) => {
                self.gone(serial, &reason);
                return;
            }
        };
        let wanted = self.enter(|inner, now_ns| {
            inner.core.connected(serial, now_ns);
            inner.connection_of(serial).is_some()
        });
        if !wanted {
            return; // It came up in the very moment in which it was given up.
        }
        let mut pump = Pump {
            driver: self.clone(),
            serial,
            stream,
            output: Vec::new(),
            written: 0,
            to_flush: false,
            write_failed: false,
            heard: false,
            yielded: false,
            unread: 0..0,
            buffer: vec![0; READ_BYTES].into(),
        };
        if let Some(reason) = poll_fn(|cx| pump.poll(cx)).await {
            let hint = !pump.heard && self.transport.speaks_tls();
            let hint = if hint { " (if it asks for a certificate, give one in option tls)" } else { "" };
            self.gone(serial, &format!("{reason}{hint}"));
        }
    }

    /// A connection, or an attempt at one, has come to its end.
    fn gone(self: &Arc<Self>, serial: u64, reason: &str) {
        self.enter(|inner, now_ns| {
            if inner.connection_of(serial).is_some() {
                inner.connection = None;
            }
            inner.core.disconnected(serial, &sanitised(reason.as_bytes()), now_ns);
        });
    }
}

impl Inner {
    fn connection_of(&mut self, serial: u64) -> Option<&mut Connection> {
        self.connection.as_mut().filter(|connection| connection.serial == serial)
    }

    /// Drops a connection; its task ends by itself.
    fn let_go(&mut self, serial: u64) {
        if let Some(connection) = self.connection_of(serial) {
            connection.abort.abort();
            self.connection = None;
        }
    }
}

/// Moves bytes both ways: what is queued goes out in one piece, and reading goes on while it is written.
struct Pump {
    driver: Arc<Driver>,
    serial: u64,
    stream: Box<dyn Stream>,
    output: Vec<u8>,
    written: usize,
    to_flush: bool,
    /// It is for the reading to find out why: what the server said last may still be unread.
    write_failed: bool,
    heard: bool,
    /// Whether callers that can run had their turn since this was woken.
    yielded: bool,
    /// What of the buffer was read and is not handed to the core yet.
    unread: Range<usize>,
    buffer: Box<[u8]>,
}

impl Pump {
    /// Ends with the reason, or without one where the core has left this connection.
    ///
    /// Woken, it first lets callers that can run queue what they want: the first of them has woken it, and one
    /// write for all of them is cheaper than one for each.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<String>> {
        self.yielded = !self.yielded;
        if self.yielded {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            if self.written == self.output.len() && !self.refill(cx) {
                return Poll::Ready(None);
            }
            let wrote = self.write(cx);
            if !self.unread.is_empty() {
                self.hand_on(self.unread.end);
                return self.let_callers_run(cx);
            }
            let mut into = ReadBuf::new(&mut self.buffer);
            let read = match Pin::new(&mut self.stream).poll_read(cx, &mut into) {
                Poll::Pending => 0,
                Poll::Ready(Err(error)) => return Poll::Ready(Some(why(&error))),
                Poll::Ready(Ok(())) if into.filled().is_empty() => {
                    return Poll::Ready(Some("the server closed the connection".into()));
                }
                Poll::Ready(Ok(())) => into.filled().len(),
            };
            if read > 0 {
                self.heard = true;
                self.unread = 0..read;
                if read >= HALVED_BYTES {
                    self.hand_on(read / 2);
                    return self.let_callers_run(cx);
                }
                self.hand_on(read);
            } else if !wrote {
                return Poll::Pending;
            }
        }
    }

    /// Hands what was read up to there to the core.
    fn hand_on(&mut self, end: usize) {
        let data = &self.buffer[self.unread.start..end];
        self.driver.enter(|inner, now_ns| inner.core.receive(self.serial, data, now_ns));
        self.unread.start = end;
    }

    /// Goes on when those who were just woken have queued what they want.
    fn let_callers_run(&mut self, cx: &Context<'_>) -> Poll<Option<String>> {
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes what is to be written, or asks to be woken for it. Tells whether the connection is still wanted.
    fn refill(&mut self, cx: &Context<'_>) -> bool {
        self.written = 0;
        self.output.clear();
        if self.output.capacity() > KEPT_BYTES {
            self.output = Vec::new();
        }
        let mut inner = lock(&self.driver.inner);
        if inner.connection_of(self.serial).is_none() {
            return false;
        }
        inner.core.append_output(&mut self.output, now_ns());
        if let Some(connection) = inner.connection_of(self.serial) {
            connection.waker = Some(cx.waker().clone());
        }
        true
    }

    /// Tells whether something was written.
    fn write(&mut self, cx: &mut Context<'_>) -> bool {
        if self.write_failed {
            self.written = self.output.len();
        }
        let mut wrote = false;
        while self.written < self.output.len() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.output[self.written..]) {
                Poll::Ready(Ok(count)) if count > 0 => {
                    self.written += count;
                    self.to_flush = true;
                    wrote = true;
                }
                Poll::Ready(_) => {
                    self.write_failed = true;
                    self.to_flush = false;
                    self.written = self.output.len();
                }
                Poll::Pending => return wrote,
            }
        }
        if self.to_flush {
            match Pin::new(&mut self.stream).poll_flush(cx) {
                Poll::Pending => {}
                Poll::Ready(flushed) => {
                    self.to_flush = false;
                    self.write_failed |= flushed.is_err();
                }
            }
        }
        wrote
    }
}
