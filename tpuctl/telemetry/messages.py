"""The messages of libtpu's runtime metrics service and of profilers, as protobuf classes made from a table.

Field numbers are those of `tpu_metric_service.proto` and `tpu_telemetry.proto` in the wheel of tpu-info 0.14.2
(github.com/AI-Hypercomputer/cloud-accelerator-diagnostics, fe85c12). Those of the profiler are in
tsl/profiler/protobuf (profiler_service.proto, profiler_options.proto) of github.com/openxla/xla. What nobody
here reads is left out, and passed over by parsers. Enums are numbers, and the map of cores is the list of its
entries, which is the same on the wire (protobuf.dev, "Encoding"). All fields tell whether they are there, so a
oneof needs no word.
"""

from __future__ import annotations

from functools import cache
from typing import Any

SERVICE = "tpu.monitoring.runtime.RuntimeMetricService"
_FIELDS = """
MetricRequest metric_name=1:string skip_node_aggregation=2:bool
MetricResponse metric=1:TPUMetric
TPUMetric name=1:string description=2:string metrics=3*Metric
Metric attribute=1:Attribute gauge=3:Gauge counter=4:Counter distribution=5:Distribution
Attribute key=1:string value=2:AttrValue
AttrValue string_attr=1:string int_attr=3:int64 kvlist_attr=6:KeyValueList
KeyValueList attributes=1*Attribute
Gauge as_double=1:double as_int=2:int64
Counter as_double=1:double as_int=2:uint64
Distribution count=1:int64 mean=2:double bucket_options=6:BucketOptions bucket_counts=7*int64
BucketOptions exponential_buckets=2:Exponential
Exponential num_finite_buckets=1:int32 growth_factor=2:double scale=3:double
ListSupportedMetricsRequest filter=1:string
ListSupportedMetricsResponse supported_metric=1*SupportedMetric
SupportedMetric metric_name=1:string
GetTpuRuntimeStatusRequest include_hlo_info=1:bool
GetTpuRuntimeStatusResponse host_name=1:string core_states=2*CoreEntry
CoreEntry key=1:int32 value=2:CoreSummary
CoreSummary core_id=1:CoreId sequencer_info=2*SequencerInfo program_fingerprint=4:bytes launch_id=5:int32 \
queued_program_info=6*QueuedProgram error_message=7:string
CoreId global_core_id=1:int32 chip_id=2:int32 core_on_chip=3:CoreOnChip
CoreOnChip type=1:int32 index=2:int32
QueuedProgram run_id=1:int64 launch_id=2:int64 program_fingerprint=3:bytes
SequencerInfo sequencer_type=1:int32 sequencer_index=2:int32 pc=3:int64 program_id=6:int64 run_id=7:int64 \
hlo_location=8:string hlo_detailed_info=9:string
ProfileRequest duration_ms=1:uint64 opts=4:ProfileOptions repository_root=5:string session_id=6:string \
host_name=7:string
ProfileOptions host_tracer_level=2:uint32 device_tracer_level=3:uint32 python_tracer_level=4:uint32 \
version=5:uint32 duration_ms=9:uint64
ProfileResponse empty_trace=7:bool
"""
METHODS = {
    "GetRuntimeMetric": ("MetricRequest", "MetricResponse"),
    "ListSupportedMetrics": ("ListSupportedMetricsRequest", "ListSupportedMetricsResponse"),
    "GetTpuRuntimeStatus": ("GetTpuRuntimeStatusRequest", "GetTpuRuntimeStatusResponse"),
}
"""All are unary: the names of request and response."""

HBM_TOTAL = "tpu.runtime.hbm.memory.total.bytes"
HBM_USED = "tpu.runtime.hbm.memory.usage.bytes"
DUTY = "tpu.runtime.tensorcore.dutycycle.percent"
QUEUE = "hlo.queue.size.gauge"


@cache
def message(name: str) -> Any:
    """The protobuf class of that name."""
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


_PACKAGE = "tpuctl.telemetry"
"""Names of messages do not travel. With a pool of their own they meet nobody else's."""


@cache
def _pool() -> Any:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

    file = FileDescriptorProto(name="runtime_metrics.proto", package=_PACKAGE, syntax="proto2")
    for line in _FIELDS.strip().splitlines():
        name, *fields = line.split()
        described = file.message_type.add(name=name)
        for each in fields:
            field, _, rest = each.partition("=")
            repeated = "*" in rest
            number, _, kind = rest.replace("*", ":").partition(":")
            made = described.field.add(name=field, number=int(number))
            made.label = (
                FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
            )
            made.type = getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}", FieldDescriptorProto.TYPE_MESSAGE)
            if made.type == FieldDescriptorProto.TYPE_MESSAGE:
                made.type_name = f".{_PACKAGE}.{kind}"
    pool = DescriptorPool()
    pool.Add(file)
    return pool
