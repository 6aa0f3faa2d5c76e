"""An S3 server in a process of its own, which writes down each request: `s3_server.py LOG`."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

SECRET = "hush-hush"


def start(log: Path) -> tuple[subprocess.Popen[str], int]:
    """A server and its port."""
    child = subprocess.Popen(
        [sys.executable, __file__, str(log)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    return child, int(child.stdout.readline())


def environment(port: int) -> dict[str, str]:
    """What clients need to know of it."""
    return {
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }


def serve(log: Path) -> None:
    os.environ["MOTO_DISABLE_GLOBAL_CORS"] = "true"
    from moto.server import create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, code: object = "-", size: object = "-") -> None:
            with log.open("a") as file:
                file.write(f"{self.command} {self.path} {code}\n")

    # Which of Amazon's services is asked need not be found out with each request.
    app = create_backend_app("s3")
    with make_server("127.0.0.1", 0, app, threaded=True, request_handler=Handler) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    if parent := os.getppid():
        import threading
        import time

        def end_with_parent() -> None:
            while os.getppid() == parent:
                time.sleep(0.5)
            os._exit(0)

        threading.Thread(target=end_with_parent, daemon=True).start()
    serve(Path(sys.argv[1]))
