"""Raw-socket tests of a Ticketing server, whichever implementation it is.

    pytest --pyargs ticketing_conformance.server_suite
    pytest --pyargs ticketing_conformance.server_suite --server 127.0.0.1:5225

Without `--server` the reference server is started as often, and with the settings, as the tests
need. With it the tests that need settings or signals of their own are skipped, and say so.
"""
