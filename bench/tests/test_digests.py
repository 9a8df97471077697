"""The generator's SHA-256 and HMAC against Python's, at every length around the block edges."""

from __future__ import annotations

import hashlib
import hmac
import subprocess
from pathlib import Path


def test_sha256_and_hmac_agree_with_hashlib(built: Path) -> None:
    material = bytes((7 * i + i // 256) % 256 for i in range(1200))
    cases = [
        (material[start : start + key_bytes], material[:data_bytes])
        for start, key_bytes in enumerate([0, 1, 16, 63, 64, 65, 128, 1024])
        for data_bytes in [*range(130), 183, 184, 247, 248, 1000]
    ]
    lines = "".join(f"{key.hex() or '-'} {data.hex() or '-'}\n" for key, data in cases)
    done = subprocess.run(
        [built / "digest"], input=lines, capture_output=True, text=True, timeout=60, check=True
    )
    expected = [
        f"{hashlib.sha256(data).hexdigest()} {hmac.digest(key, data, 'sha256').hex()}"
        for key, data in cases
    ]
    assert done.stdout.splitlines() == expected
