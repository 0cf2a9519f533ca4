"""MLflow's own message of a run, and a tracking store, with what `manifest export --as mlflow` writes."""

import json
from pathlib import Path

from checks import WORK, check, main
from google.protobuf.json_format import ParseDict
from mlflow.entities import Run
from mlflow.protos.service_pb2 import Run as Message
from mlflow.utils.validation import _validate_batch_log_data

RUN = Run.from_proto(ParseDict(json.loads(Path(WORK, "mlflow.json").read_text())["run"], Message()))


@check
def run():
    """a run with its state and times"""
    assert (RUN.info.status, RUN.info.run_name) == ("FINISHED", "first")
    assert RUN.info.start_time < RUN.info.end_time


@check
def batch():
    """params, tags and metrics within the limits of a batch"""
    read = RUN.to_proto().data
    assert RUN.data.params["accelerator_type"] == "v4-16"
    _validate_batch_log_data(read.metrics, read.params, read.tags)
    return sorted(RUN.data.metrics)


if __name__ == "__main__":
    main()
