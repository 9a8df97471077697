//! The Rust client beside redis-rs (multiplexed): acquire and release in pairs per second, 64 callers on one
//! connection, against SET NX PX and a script that compares and deletes. Both servers are started here.
//!
//! `cargo run --release -- --server "python3 -m ticketing_server" [--rounds 9] [--seconds 2] [--threads 1]`

use redis::aio::MultiplexedConnection;
use std::error::Error;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use ticketing::Client;

const CALLERS: usize = 64;
const LEASE: Duration = Duration::from_secs(30);
const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

type Failure = Box<dyn Error + Send + Sync>;

/// A server that ends with this.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill(); // It may be gone already.
        let _ = self.0.wait();
    }
}

fn start(words: &[&str]) -> Result<Started, Failure> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(Started(command.spawn().map_err(|error| format!("{words:?}: {error}"))?))
}

fn option(name: &str, without: &str) -> String {
    let arguments: Vec<String> = std::env::args().collect();
    let at = arguments.iter().position(|argument| argument == name);
    at.and_then(|at| arguments.get(at + 1)).map_or_else(|| without.to_owned(), Clone::clone)
}

/// CPU time of this process so far, in microseconds.
fn cpu_us() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = text.rsplit(')').next().unwrap_or_default();
    let ticks: f64 = after.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks * 10_000.0
}

/// Pairs per second, and CPU time of this process per pair.
async fn round<F>(pair: impl Fn(usize) -> F) -> Result<(f64, f64), Failure>
where
    F: std::future::Future<Output = Result<u64, Failure>> + Send + 'static,
{
    let (began, cpu) = (Instant::now(), cpu_us());
    let callers: Vec<_> = (0..CALLERS).map(|at| tokio::spawn(pair(at))).collect();
    let mut pairs = 0;
    for caller in callers {
        pairs += caller.await??;
    }
    Ok((pairs as f64 / began.elapsed().as_secs_f64(), (cpu_us() - cpu) / pairs as f64))
}

async fn ours(client: Client, at: usize, until: Instant) -> Result<u64, Failure> {
    let key = format!("key-{at}");
    let mut pairs = 0;
    while Instant::now() < until {
        client.acquire(key.as_bytes()).lease(LEASE).await?.release().await?;
        pairs += 1;
    }
    Ok(pairs)
}

async fn theirs(
    mut connection: MultiplexedConnection,
    script: Arc<redis::Script>,
    values: Arc<AtomicU64>,
    at: usize,
    until: Instant,
) -> Result<u64, Failure> {
    let key = format!("key-{at}");
    let mut pairs = 0;
    while Instant::now() < until {
        let value = values.fetch_add(1, Ordering::Relaxed);
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(value).arg("NX").arg("PX").arg(LEASE.as_millis() as u64);
        let taken: Option<String> = set.query_async(&mut connection).await?;
        let deleted: u64 = script.key(&key).arg(value).invoke_async(&mut connection).await?;
        if taken.is_none() || deleted != 1 {
            return Err("a key was not free, or not there any more".into());
        }
        pairs += 1;
    }
    Ok(pairs)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn compare(rounds: usize, seconds: f64) -> Result<(), Failure> {
    let folder = std::env::temp_dir().join(format!("ticketing-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let ready = folder.join("ready");
    let command = option("--server", "python3 -m ticketing_server");
    let ready_text = ready.to_string_lossy().into_owned();
    let mut words: Vec<&str> = command.split_whitespace().collect();
    words.extend(["--listen", "127.0.0.1:0", "--ready-file", &ready_text]);
    let _server = start(&words)?;
    let socket = folder.join("redis.sock").to_string_lossy().into_owned();
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0")?;
        free.local_addr()?.port().to_string()
    };
    let _redis =
        start(&["redis-server", "--port", &port, "--bind", "127.0.0.1", "--save", "", "--unixsocket", &socket])?;
    let mut url = String::new();
    for _ in 0..500 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let text = std::fs::read_to_string(&ready).unwrap_or_default();
        url = text.lines().find_map(|line| line.strip_prefix("url=")).unwrap_or_default().to_owned();
        if !url.is_empty() && text.contains("pid=") && std::path::Path::new(&socket).exists() {
            break;
        }
    }
    let client = Client::connect(url).await?;
    let redis = redis::Client::open(format!("redis://127.0.0.1:{port}/"))?;
    let connection = redis.get_multiplexed_async_connection().await?;
    let script = Arc::new(redis::Script::new(COMPARE_AND_DELETE));
    let values = Arc::new(AtomicU64::new(0));
    let (mut a, mut b, mut ratios, mut a_cpu, mut b_cpu) = (vec![], vec![], vec![], vec![], vec![]);
    for number in 0..=rounds {
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        let (mine, my_cpu) = round(|at| ours(client.clone(), at, until)).await?;
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        let (other, other_cpu) =
            round(|at| theirs(connection.clone(), script.clone(), values.clone(), at, until)).await?;
        if number == 0 {
            continue; // Both sides warm up.
        }
        println!("{number}: {mine:.0} and {other:.0} pairs/s, x {:.2}", mine / other);
        a.push(mine);
        b.push(other);
        ratios.push(mine / other);
        a_cpu.push(my_cpu);
        b_cpu.push(other_cpu);
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!(
        "medians: ticketing {:.0} ({:.0} to {:.0}), redis-rs {:.0} ({:.0} to {:.0}), x {:.2}; CPU us per pair {:.1} and {:.1}; load {}",
        median(&mut a), a[0], a[a.len() - 1], median(&mut b), b[0], b[b.len() - 1], median(&mut ratios),
        median(&mut a_cpu), median(&mut b_cpu), load.split(' ').next().unwrap_or_default()
    );
    client.close().await;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

fn main() -> Result<(), Failure> {
    let threads: usize = option("--threads", "1").parse()?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(threads)
        .enable_all()
        .build()?
        .block_on(compare(option("--rounds", "9").parse()?, option("--seconds", "2").parse()?))
}
