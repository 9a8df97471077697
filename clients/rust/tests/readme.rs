//! The README's example is the file, and runs as printed.

mod support;

use std::process::Command;
use support::Server;

#[test]
fn the_quickstart_is_in_the_readme_and_runs() {
    let root = env!("CARGO_MANIFEST_DIR");
    let read = |name: &str| std::fs::read_to_string(format!("{root}/{name}")).expect("a file");
    let readme = read("README.md");
    let (_, after) =
        readme.split_once("<!-- example: examples/quickstart.rs -->\n```rust,no_run\n").expect("an example");
    let (printed, _) = after.split_once("```").expect("its end");
    assert_eq!(printed, read("examples/quickstart.rs"));

    let server = Server::start();
    let run = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--example", "quickstart"])
        .current_dir(root)
        .env("TICKETING_URL", &server.url)
        .env_remove("TICKETING_SECRET")
        .output()
        .expect("cargo");
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    let token = said.strip_prefix("I hold orders/42 with token ").and_then(|rest| rest.strip_suffix('\n'));
    assert!(token.is_some_and(|token| token.parse::<u64>().is_ok()), "{run:?}");
}
