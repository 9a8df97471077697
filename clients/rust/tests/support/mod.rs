//! A real server in a process of its own, and what tests ask of it.

#![allow(dead_code)] // Each of the test programs that include this uses a part of it.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long tests wait for what has to happen, on a machine that does much else.
pub const PATIENCE: Duration = Duration::from_secs(60);

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A folder that goes away with this.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("ticketing-rust-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a path in UTF-8").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // A leftover in the temporary folder is no failure.
    }
}

pub struct Server {
    child: Child,
    folder: Folder,
    ready: HashMap<String, String>,
    pub url: String,
}

impl Server {
    pub fn start() -> Self {
        Self::with(&["--listen", "127.0.0.1:0"], &[])
    }

    /// Starts a server; the test fails where there is none to start.
    pub fn with(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let given = std::env::var("TICKETING_TEST_SERVER").unwrap_or_default();
        let given = if given.trim().is_empty() { "python3 -m ticketing_server".to_owned() } else { given };
        let words: Vec<&str> = given.split_whitespace().collect();
        let folder = Folder::new();
        let (ready_file, output) = (folder.file("ready"), folder.file("output"));
        let log = std::fs::File::create(&output).expect("a file");
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .args(arguments)
            .args(["--ready-file", &ready_file])
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{words:?}: {error} (TICKETING_TEST_SERVER names the command)"));
        let deadline = Instant::now() + PATIENCE;
        let ready = loop {
            let text = std::fs::read_to_string(&ready_file).unwrap_or_default();
            if text.contains("pid=") {
                break text.lines().filter_map(|line| line.split_once('=')).map(own).collect::<HashMap<_, _>>();
            }
            let ended = child.try_wait().expect("its state");
            if ended.is_some() || Instant::now() > deadline {
                panic!("the server did not start:\n{}", std::fs::read_to_string(&output).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let url = ready["url"].clone();
        Self { child, folder, ready, url }
    }

    /// Kills it and starts it on the same port.
    pub fn start_again(&mut self) {
        self.kill();
        let listen = self.ready["listen"].clone();
        let mut again = Self::with(&["--listen", &listen], &[]);
        std::mem::swap(self, &mut again);
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("its end");
        self.child.wait().expect("its end");
    }

    fn metric(&self, page: &str, name: &str) -> f64 {
        page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0.0)
    }

    /// Tickets and waiters that the server has.
    pub fn counts(&self) -> (f64, f64) {
        let http = &self.ready["http-listen"];
        let address = http.as_str();
        let mut stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{http}: {error}"));
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("a request");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("an answer");
        assert!(page.contains("ticketing_tickets"), "{page}");
        let states = ["attached", "held_back", "detached"];
        let waiters = states.map(|state| self.metric(&page, &format!("ticketing_waiters{{state=\"{state}\"}}")));
        (self.metric(&page, "ticketing_tickets "), waiters.iter().sum())
    }

    /// Waits until the server has nothing any more.
    pub fn expect_empty(&self) {
        self.expect_counts(0.0, 0.0);
    }

    pub fn expect_counts(&self, tickets: f64, waiters: f64) {
        let deadline = Instant::now() + PATIENCE;
        while self.counts() != (tickets, waiters) {
            assert!(Instant::now() < deadline, "tickets and waiters: {:?}", self.counts());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn own((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It may be gone already.
        let _ = self.child.wait();
        let _ = &self.folder;
    }
}

/// Threads and sockets of this process.
pub fn counts() -> (usize, usize) {
    let entries = |path: &str| std::fs::read_dir(path).into_iter().flatten().flatten();
    let is_socket = |entry: &std::fs::DirEntry| {
        std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    (entries("/proc/self/task").count(), entries("/proc/self/fd").filter(is_socket).count())
}
