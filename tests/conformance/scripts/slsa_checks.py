"""in-toto's own messages, of which provenance is one, made of what `manifest export --as slsa` writes."""

import json
from pathlib import Path

from checks import WORK, check, main
from google.protobuf.json_format import ParseDict
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement

WRITTEN = json.loads(Path(WORK, "slsa.json").read_text())


@check
def statement():
    """a statement with a subject and its digest"""
    read = Statement.copy_from_pb(ParseDict(WRITTEN, statement_pb2.Statement()))
    read.validate()
    return read.pb.subject[0].name


@check
def provenance():
    """SLSA provenance 1, every dependency with a name or digest"""
    read = ParseDict(WRITTEN["predicate"], provenance_pb2.Provenance())
    dependencies = read.build_definition.resolved_dependencies
    assert dependencies
    for each in dependencies:
        ResourceDescriptor.copy_from_pb(each).validate()
    assert (
        read.run_details.metadata.started_on.ToDatetime() < read.run_details.metadata.finished_on.ToDatetime()
    )


if __name__ == "__main__":
    main()
