"""Our node's name among those that `ros2 node list` and `info` show.

Nodes tell theirs, and which readers and writers are whose, on the topic `ros_discovery_info`. Its identities have 16
bytes from Iron on and had 24 before, under one name: so it is told only where every node has the newer type's hash.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cyclonedds.domain import DomainParticipant
from cyclonedds.qos import Policy
from cyclonedds.qos import Qos as DdsQos

from rtcontrol_client.ros2.config import Qos
from rtcontrol_client.ros2.dds import DdsPeer, Input, Output, dds_name
from rtcontrol_client.ros2.definitions import Definitions
from rtcontrol_client.ros2.parts import Topic

TYPES = {
    "rmw_dds_common/msg/Gid": "char[16] data",
    "rmw_dds_common/msg/NodeEntitiesInfo": """
        string<=256 node_namespace
        string<=256 node_name
        Gid[] reader_gid_seq
        Gid[] writer_gid_seq""",
    "rmw_dds_common/msg/ParticipantEntitiesInfo": """
        Gid gid
        NodeEntitiesInfo[] node_entities_info_seq""",
}
PARTICIPANT = DdsQos(Policy.Userdata(b"enclave=/;"))


class NodeName:
    """Tells it once there is somebody to hear it."""

    def __init__(self, participant: DomainParticipant, name: str) -> None:
        self._participant, self._name = participant, name
        types = Definitions(TYPES, "graph")
        kind = types.message("rmw_dds_common/msg/ParticipantEntitiesInfo")
        qos = Qos(reliability="reliable", durability="transient_local")
        self._topic = Topic("ros_discovery_info", *kind, qos, prefix="")
        self._gid = types.message("rmw_dds_common/msg/Gid")[1]
        self._node = types.message("rmw_dds_common/msg/NodeEntitiesInfo")[1]
        self._output: Output | None = None
        self._told: Any = None

    def tell(self, peers: Iterable[DdsPeer], inputs: Iterable[Input], outputs: Iterable[Output]) -> None:
        """`peers`: everybody else's subscribers; the others: our own."""
        hashes = {peer.type_hash for peer in peers if peer.topic == dds_name(self._topic)}
        if hashes != {self._topic.type_hash}:
            return
        if self._output is None:
            self._output = Output(self._participant, self._topic)
        readers, writers = ([self._of(end.entity) for end in ends] for ends in (inputs, outputs))
        node = self._node(node_namespace="/", node_name=self._name, reader_gid_seq=readers, writer_gid_seq=writers)
        message = self._topic.cls(gid=self._of(self._participant), node_entities_info_seq=[node])
        if message != self._told and self._output.write(message):
            self._told = message

    def _of(self, entity: Any) -> Any:
        return self._gid(data=list(entity.get_guid().bytes))
