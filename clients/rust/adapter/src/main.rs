//! The conformance adapter of the Rust client: lines in, lines out (conformance/ADAPTER.md).
//!
//! The verbs are in verbs.rs, once for both APIs: futures, which under the blocking API never wait, so that they run
//! to their end in one step, in a thread of their own.

mod lines;
mod verbs;

use lines::{parse, show, Answer, Fields};
use std::collections::HashMap;
use std::future::Future;
use std::io::{BufRead, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout, Instant};
use verbs::{Api, Verbs};

type Verb = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A verb that runs: in the background, or while the harness waits.
#[derive(Clone)]
struct Call {
    answer: watch::Receiver<Option<Answer>>,
    abort: Option<AbortHandle>,
}

impl Call {
    async fn ended(&mut self) -> Answer {
        match self.answer.wait_for(Option::is_some).await {
            Ok(answer) => answer.clone().unwrap_or_else(|| Answer::fail("a call without an answer")),
            Err(_) => Answer::err("cancelled"), // Its task was dropped before it had one.
        }
    }
}

#[derive(Default)]
struct Adapter {
    verbs: Arc<Verbs>,
    calls: HashMap<String, Call>,
    started: Vec<Call>,
    baseline: Option<Vec<(&'static str, usize)>>,
}

impl Adapter {
    async fn run(&mut self, verb: &str, fields: Fields) -> Answer {
        match verb {
            "await" => return self.wait_for(&fields).await,
            "cancel" => {
                return match self.calls.get(&fields.word("as")).map(|call| &call.abort) {
                    Some(Some(abort)) => {
                        abort.abort();
                        Answer::ok()
                    }
                    Some(None) => Answer::unsupported(), // A thread that blocks can't be stopped.
                    None => Answer::fail("there is no background call of this name"),
                };
            }
            "leak_check" => return self.leak_check().await,
            "reset" => return self.reset(Duration::from_secs(5)).await,
            _ => {}
        }
        let Some(takes) = Verbs::takes(verb) else { return Answer::unsupported() };
        let known = |name: &str| format!(" {takes} detach cancel_after_ms client as ").contains(&format!(" {name} "));
        if let Some(name) = fields.names().find(|name| !known(name)) {
            return Answer::fail(&format!("{verb} takes no {name}"));
        }
        if verb == "open" && self.baseline.is_none() {
            self.baseline = Some(counts());
        }
        let api = self.verbs.api_of(&fields);
        let cancel_after = fields.number("cancel_after_ms").map(Duration::from_millis);
        if api == Api::Blocking && cancel_after.is_some() {
            return Answer::unsupported();
        }
        let (name, detach) = (fields.word("as"), fields.flag("detach"));
        let running = self.verbs.clone().run(verb.to_owned(), fields);
        let mut call = start(api, Box::pin(running), cancel_after).await;
        if !detach {
            return call.ended().await;
        }
        self.calls.insert(name, call.clone());
        self.started.push(call);
        Answer::ok()
    }

    async fn wait_for(&mut self, fields: &Fields) -> Answer {
        let Some(call) = self.calls.get_mut(&fields.word("as")) else {
            return Answer::fail("there is no background call of this name");
        };
        let within = Duration::from_millis(fields.number("timeout_ms").unwrap_or(30_000));
        timeout(within, call.ended()).await.unwrap_or_else(|_| Answer::err("pending"))
    }

    async fn reset(&mut self, bound: Duration) -> Answer {
        let deadline = Instant::now() + bound;
        for closing in self.verbs.closing() {
            self.started.push(start(closing.0, closing.1, None).await);
        }
        let mut late = 0;
        for call in &mut self.started {
            late += usize::from(tokio::time::timeout_at(deadline, call.ended()).await.is_err());
        }
        self.verbs.forget();
        self.calls.clear();
        self.started.clear();
        if late > 0 {
            return Answer::fail(&format!("{late} calls did not end"));
        }
        Answer::ok()
    }

    async fn leak_check(&self) -> Answer {
        let Some(baseline) = &self.baseline else { return Answer::ok() };
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            let mut answer = Answer::ok();
            let mut clean = true;
            for ((name, now), (_, before)) in counts().into_iter().zip(baseline) {
                clean &= now <= *before;
                answer = answer.with(name, now.saturating_sub(*before) as u64);
            }
            if clean || Instant::now() > deadline {
                return answer;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Runs a verb: as a task that has begun to wait when this returns, or in a thread.
async fn start(api: Api, mut verb: Verb, cancel_after: Option<Duration>) -> Call {
    let (tell, answer) = watch::channel(None);
    if api == Api::Blocking {
        std::thread::spawn(move || {
            let answer = match verb.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => answer,
                Poll::Pending => Answer::fail("a call of the blocking API has to be awaited"),
            };
            let _ = tell.send(Some(answer)); // Nobody may be left to hear it.
        });
        return Call { answer, abort: None };
    }
    let task = tokio::spawn(async move {
        let answer = verb.await;
        let _ = tell.send(Some(answer));
    });
    let abort = task.abort_handle();
    if let Some(after) = cancel_after {
        let abort = abort.clone();
        tokio::spawn(async move {
            sleep(after).await;
            abort.abort();
        });
    }
    tokio::task::yield_now().await;
    Call { answer, abort: Some(abort) }
}

fn counts() -> Vec<(&'static str, usize)> {
    let entries = |path: &str| std::fs::read_dir(path).into_iter().flatten().flatten();
    let is_socket = |entry: &std::fs::DirEntry| {
        std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    vec![
        ("threads", entries("/proc/self/task").count()),
        ("tasks", Handle::current().metrics().num_alive_tasks()),
        ("sockets", entries("/proc/self/fd").filter(is_socket).count()),
    ]
}

async fn converse(mut requests: mpsc::UnboundedReceiver<String>) {
    let mut adapter = Adapter::default();
    while let Some(line) = requests.recv().await {
        let (number, verb, fields) = parse(&line);
        let answer = match fields {
            Ok(fields) => adapter.run(&verb, fields).await,
            Err(why) => Answer::fail(&why),
        };
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{number} {}", show(&answer)).and_then(|()| out.flush());
    }
    adapter.reset(Duration::from_secs(2)).await;
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(Duration::from_millis(1))
        .build()
        .expect("a runtime");
    let (tell, requests) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                break;
            }
        }
    });
    runtime.block_on(converse(requests));
    std::process::exit(0); // Whatever a client left behind must not keep the process alive.
}
