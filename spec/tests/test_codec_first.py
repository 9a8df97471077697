from ticketing_spec import load_spec
from ticketing_spec.codec import decode, encode


def test_acquire_round_trip() -> None:
    spec = load_spec()
    fields = {"request_id": 1, "wait_ms": 0, "lease_ms": 1000, "key": b"a"}
    wire = encode(spec, "client", "acquire", fields)
    assert wire.hex() == "410011" + "0000000000000001" + "00000000" + "000003e8" + "61"
    assert decode(spec, "client", wire) == ("acquire", fields)
