"""resync-simulator 1.1.0 as a Source that changes when it is told to.

    simulated_source.py PORT SPEC_VERSION

Each line on standard input is a number of events; they happen, then one line of JSON on standard output tells what
there is: {basename: length}. The simulator was written for another Python: what does not work any more is replaced here,
and it listens on loopback alone.
"""

import json
import logging
import random
import sys
import threading

import tornado.httpserver
import tornado.web
from simulator import http, source
from simulator.changememory import DynamicChangeList

PORT, SPEC_VERSION = int(sys.argv[1]), sys.argv[2]

SETTINGS = {
    "name": "ResourceSync Simulator",
    "number_of_resources": 300,
    "change_delay": 0.004,
    "event_types": ["create", "update", "delete"],
    "average_payload": 20000,
    "max_events": 0,
    "stats_interval": 1000,
}


class Sampling:
    """The module `random`, which draws from a view of a dictionary as it did before Python 3.11."""

    choice = staticmethod(random.choice)
    randint = staticmethod(random.randint)

    @staticmethod
    def sample(population, number):
        return random.sample(list(population), number)


class LoopbackServer(tornado.httpserver.HTTPServer):
    """A server that nobody else can reach."""

    def listen(self, port):
        super().listen(port, address="127.0.0.1")


class PlainApplication(tornado.web.Application):
    """An application that does not watch its own files."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **{**settings, "debug": False})


source.random = Sampling
tornado.httpserver.HTTPServer = LoopbackServer
tornado.web.Application = PlainApplication
logging.disable(logging.CRITICAL)

simulated = source.Source(SETTINGS, f"http://localhost:{PORT}", PORT, SPEC_VERSION)
simulated.add_resource_list_builder(source.DynamicResourceListBuilder(simulated, {
    "class": "DynamicResourceListBuilder", "uri_path": "resourcelist.xml"}))
simulated.add_changememory(DynamicChangeList(simulated, {
    "class": "DynamicChangeList", "uri_path": "changelist.xml", "max_changes": 800}))
simulated.bootstrap()

# Its class for this thread hides a method that every thread of today needs.
threading.Thread(target=http.HTTPInterface(simulated).run, daemon=True).start()

for line in sys.stdin:
    SETTINGS["max_events"] = simulated.no_events + int(line)
    simulated.simulate_changes()
    lengths = {name: known["length"] for name, known in simulated._repository.items()}
    print(json.dumps(lengths), flush=True)
