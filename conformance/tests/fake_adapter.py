"""An adapter without a client: it answers as its argument tells. For tests of the harness."""

import os
import sys
import time

mode = sys.argv[1] if len(sys.argv) > 1 else "good"
for line in sys.stdin:
    number, verb, *fields = line.split()
    answer = "ok"
    if verb == "florble":
        answer = "ok" if mode == "probe" else "unsupported"
    elif verb == "hello":
        digest = "0" * 16 if mode == "digest" else os.environ["DIGEST"]
        features = "sync,fork" if mode == "features" else "sync"
        answer = (
            f"ok protocol=1 language=fake client=1 runtime=1 features={features} digest={digest}"
        )
    elif verb == "leak_check":
        answer = "ok threads=1" if mode == "leak" else "ok threads=0"
    elif verb == "ping" and mode == "hang":
        time.sleep(60)
    elif verb == "ping" and mode == "dead":
        print("last words", file=sys.stderr, flush=True)
        os._exit(7)
    elif verb == "ping" and mode == "number":
        number = "99"
    elif verb == "ping" and mode == "garbage":
        answer = "ok  twice"
    elif verb == "ping":
        answer = "ok echo=5"
    elif verb == "extend":
        answer = "fail text=x:6f6f7073"
    elif verb == "release":
        answer = "err kind=lost"
    print(number, answer, flush=True)
sys.exit(3 if mode == "exit" else 0)
