"""A hub made by somebody else's library (Flask-WebSub) on loopback, for tests.

Prints its port, then serves until its standard input ends:

  POST /hub      WebSub's own: hub.mode=subscribe, unsubscribe, and publish, which makes the hub fetch the topic
  POST /relay    a Source's own notification with its Link header, relayed as it is

Subscriptions lie in FOLDER; the queue of its workers is in this process.
"""

import base64
import os
import re
import sys
import threading

from celery import Celery
from celery.contrib.testing.worker import start_worker
from flask import Flask, request
from flask_websub.hub import Hub, SQLite3HubStorage
from werkzeug.serving import make_server

folder = sys.argv[1]

celery = Celery('hub', broker='memory://', backend='cache+memory://')
celery.conf.broker_transport_options = {'polling_interval': 0.01}
celery.conf.broker_connection_retry_on_startup = True

app = Flask(__name__)
app.config.update(PUBLISH_SUPPORTED=True, HUB_MIN_LEASE_SECONDS=1, BACKOFF_BASE=0.1)
hub = Hub(SQLite3HubStorage(os.path.join(folder, 'hub.sqlite')), celery, **app.config)
app.register_blueprint(hub.build_blueprint(url_prefix='/hub'))


@app.post('/relay')
def relay():
    links = request.headers['Link']
    topic = re.search(r'<([^>]*)>\s*;\s*rel="self"', links).group(1)
    hub.send_change_notification.delay(topic, {
        'headers': {'Content-Type': request.headers['Content-Type'], 'Link': links},
        'content': base64.b64encode(request.get_data()).decode('ascii'),
    })
    return '', 204


with start_worker(celery, pool='threads', concurrency=2, perform_ping_check=False, loglevel='WARNING'):
    server = make_server('127.0.0.1', 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.port, flush=True)
    sys.stdin.read()
    os._exit(0)
