"""The API without a transport: a request's bytes in, an answer's bytes out. Every door serves exactly this.

`METHODS` is the whole API: each method with how its request is read and its answer written. A door finds the method,
calls `Service`, sends what comes back and maps `MqError.status` to its own codes; it decides nothing else. Limits,
and later identity and permissions, are checked here, once for all doors.
"""

from mq.service.api import METHODS, Kind, Method
from mq.service.edge import Connection, Edge
from mq.service.response import Delivery, Pieces
from mq.service.service import Answer, Service

__all__ = ["METHODS", "Answer", "Connection", "Delivery", "Edge", "Kind", "Method", "Pieces", "Service"]
