"""The dashboard in a real browser: what it shows, and that keys and labels stay text."""

from __future__ import annotations

import shutil
import socket
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from plain_client import PlainClient
from ticketing_server import constants_gen as c
from ticketing_server.testing import ServerThread

CHROMIUM = shutil.which("chromium")
BROWSER_TIMEOUT_S = 120.0
EVIL_KEY = b"<img src=x onerror=document.title='owned'>"
EVIL_LABEL = "<script>document.title='owned'</script>;go/1"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium in PATH (Debian: apt-get install chromium)"
)


class Page(HTMLParser):
    """Texts, elements and attributes of the page as the browser has it in the end."""

    def __init__(self, dom: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(dom)
        self.text = " ".join(self.texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] not in ("script", "style"):
            self.texts.append(data)


def browse(url: str, profile: Path) -> tuple[Page, str]:
    """Open a page, let two seconds of its time pass; the page then, and the console."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={profile}",
            "--enable-logging=stderr",
            "--virtual-time-budget=2000",
            "--dump-dom",
            url,
        ],
        capture_output=True,
        text=True,
        timeout=BROWSER_TIMEOUT_S,
        check=True,
    )
    console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return Page(done.stdout), console


def test_shows_who_holds_and_who_waits_and_nothing_runs(tmp_path: Path) -> None:
    with ServerThread() as server:
        holder = PlainClient(server.address, label=EVIL_LABEL, client_id=1)
        token = holder.hold(EVIL_KEY)
        holder.hold(b"quiet key\n")
        waiters = [
            PlainClient(server.address, label=f"waiter-{n};rust/1", client_id=n) for n in (2, 3)
        ]
        for waiter in waiters:
            waiter.acquire(EVIL_KEY, wait_ms=c.WAIT_MS_FOREVER)
            waiter.ping()
        page, console = browse(server.http_url + "/", tmp_path)
        for client in (holder, *waiters):
            client.close()
    assert console == ""
    assert "<img\\x20src=x\\x20onerror=document.title='owned'>" in page.text
    assert EVIL_LABEL in page.text
    assert "quiet\\x20key\\x0a" in page.text
    assert f"token {token}" in page.text
    first, second = page.text.index("1. waiter-2"), page.text.index("2. waiter-3")
    assert page.text.index(EVIL_LABEL) < first < second
    assert "serving" in page.text
    tags = [tag for tag, _ in page.elements]
    assert "img" not in tags
    assert tags.count("script") == 1
    assert "Ticketing" in page.texts
    assert "owned" not in page.texts
    outside = [
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name in ("src", "href", "action") and not (value or "").startswith("data:")
    ]
    assert outside == []


def outside_address() -> str:
    """An address of this machine that is not loopback, or ""; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        address: str = probe.getsockname()[0]
        return address


def test_asks_for_the_token_beyond_loopback(tmp_path: Path) -> None:
    address = outside_address()
    if not address:
        pytest.skip("this machine has no address beyond loopback")
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    with ServerThread(http_listen=f"{address}:0", http_token_file=str(token)) as server:
        page, _ = browse(server.http_url + "/", tmp_path / "profile")
    (form,) = [attributes for tag, attributes in page.elements if tag == "form"]
    assert "hidden" not in form
    assert "Authorization: Bearer TOKEN" in page.text
