"""Prints records as TensorBoard's own writer makes them, for the test of `crates/train/src/report/tensorboard.rs`.

Needs the package tensorboard: `pip install tensorboard`.
"""

import io

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

EVENTS = [
    dict(wall_time=1.5, file_version="brain.Event:2"),
    dict(wall_time=2.5, step=4, session_log=dict(status=1)),
    dict(wall_time=3.5, step=300, summary=dict(value=[dict(tag="loss", simple_value=0.25)])),
]

for event in EVENTS:
    file = io.BytesIO()
    RecordWriter(file).write(Event(**event).SerializeToString())
    print(file.getvalue().hex())
