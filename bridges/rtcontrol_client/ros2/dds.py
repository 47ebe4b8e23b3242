"""Readers and writers of DDS topics as ROS 2 names and types them, and who else there is."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from typing import Any

from cyclonedds.builtin import BuiltinDataReader
from cyclonedds.core import DDSException, InstanceState, ReadCondition, SampleState, ViewState
from cyclonedds.domain import DomainParticipant
from cyclonedds.pub import DataWriter
from cyclonedds.qos import Policy
from cyclonedds.qos import Qos as DdsQos
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic as DdsTopic

from rtcontrol_client.ros2.config import Qos
from rtcontrol_client.ros2.errors import Unmappable
from rtcontrol_client.ros2.parts import Topic

WINDOW_NS = 30_000_000_000
STEP_NS = 20_000_000  # of our own clock
BACK_NS = 200_000_000  # of a sender's: two publishers of a topic are not quite in order


class Delays:
    """The delay beyond the usual of messages from one topic: the smallest seen in the last 30 to 60 s is taken for the
    difference between the clocks, so a constant delay stays unknown, and one that grows does not. A sender whose clock
    was set back begins anew."""

    def __init__(self) -> None:
        self._least: int | None = None
        self._before: int | None = None
        self._since_ns = 0
        self._source_ns = 0
        self._skew_ns: int | None = None  # our wall clock minus our monotonic one

    def captured_ns(self, source_ns: int, wall_ns: int, now_ns: int) -> int:
        """The instant of `source_ns` (the sender's wall clock) on our monotonic clock, where it is `now_ns` at
        `wall_ns`; never in the future. A sender without a clock (not after 1970) is taken to have spoken now."""
        if source_ns <= 0:
            return now_ns
        skew_ns = wall_ns - now_ns
        if self._skew_ns is None or abs(skew_ns - self._skew_ns) > STEP_NS:
            # Our own wall clock was set: what we knew of the difference is void.
            self._least = self._before = None
        if source_ns < self._source_ns - BACK_NS:
            # The sender's was: its messages come in the order in which they were sent.
            self._least = self._before = None
        self._skew_ns, self._source_ns = skew_ns, source_ns
        delay_ns = wall_ns - source_ns
        if self._least is None or now_ns - self._since_ns > WINDOW_NS:
            self._before, self._least, self._since_ns = self._least, delay_ns, now_ns
        self._least = min(self._least, delay_ns)
        usual_ns = self._least if self._before is None else min(self._least, self._before)
        return now_ns - (delay_ns - usual_ns)


BLOCK_NS = 10_000_000
GREETING_S = 30.0
# DDS 1.4, section 2.3.3, and DDS-XTypes 1.3.
POLICIES = {2: "durability", 3: "presentation", 4: "deadline", 5: "latency budget", 6: "ownership", 8: "liveliness"}
POLICIES |= {11: "reliability", 12: "destination order", 23: "data representation", 24: "type consistency"}


def dds_name(topic: Topic) -> str:
    """`/cmd_vel` -> `rt/cmd_vel`, as ROS 2 names topics."""
    return topic.prefix + topic.name


def dds_type(topic: Topic) -> str:
    """`geometry_msgs/msg/Twist` -> `geometry_msgs::msg::dds_::Twist_`."""
    return str(topic.cls.__idl__.idl_transformed_typename)


def _qos(qos: Qos, usual: str, type_hash: str, promise_ms: float | None = None, lease: bool = True) -> DdsQos:
    reliable = (qos.reliability or usual) == "reliable"
    # Both are about the subscriber's clock alone; a lifespan would compare ours with the robot's, which may differ. The
    # lease is longer: where it has ended, cyclonedds tells of no missed deadline any more.
    promise_ns = int((promise_ms or 0) * 1e6)
    promised: list[Any] = [Policy.Deadline(promise_ns)] if promise_ns else []
    if promise_ns and lease:
        promised.append(Policy.Liveliness.ManualByTopic(2 * promise_ns))
    return DdsQos(
        *promised,
        Policy.Reliability.Reliable(BLOCK_NS) if reliable else Policy.Reliability.BestEffort,
        Policy.Durability.TransientLocal if qos.durability == "transient_local" else Policy.Durability.Volatile,
        Policy.History.KeepLast(qos.depth),
        # Iron and later read the type's hash here.
        Policy.Userdata(f"typehash={type_hash};".encode()),
        Policy.DataRepresentation(use_cdrv0_representation=True, use_xcdrv2_representation=False),
    )


def _warm(topic: Topic) -> None:
    # cyclonedds builds a type's codec at its first use, in some 100 ms: not in a tick.
    topic.cls.deserialize(topic.cls().serialize())


class Input:
    """A topic that is read: its newest message and when it was made."""

    def __init__(self, participant: DomainParticipant, topic: Topic) -> None:
        self.topic = topic
        self._delays = Delays()
        _warm(topic)
        self.entity = DataReader(
            participant,
            DdsTopic(participant, dds_name(topic), topic.cls),
            _qos(topic.qos, "best_effort", topic.type_hash),
        )
        self._met = 0  # publishers, in all
        self._greeter: tuple[DataReader[Any], float] | None = None  # and until when it is there

    def _greet(self) -> None:
        # cyclonedds 11.0.1 takes all that a writer's first heartbeat announces for past, also a message of which it has
        # only fragments yet: that is lost, and acknowledged (rmw_cyclonedds issue 367). Fast DDS sends a heartbeat when
        # it finds a reader, often before we have found its writer, and no other until there is data. So a writer that
        # we have found is shown another reader.
        qos = self.topic.qos
        if qos.reliability != "reliable" or qos.durability != "volatile":
            return
        now = time.monotonic()
        if self._greeter is not None and now > self._greeter[1]:
            self._greeter = None
        if (met := self.entity.get_subscription_matched_status().total_count) != self._met:
            reader = DataReader(self.entity.participant, self.entity.topic, _qos(qos, "reliable", self.topic.type_hash))
            self._met, self._greeter = met, (reader, now + GREETING_S)

    def take(self) -> list[Any]:
        """The messages since the last time, oldest first; a publisher's farewell is none. Raises Unmappable where the
        newest of them cannot be read; the others are lost then."""
        self._greet()
        taken: list[Any] = []
        unread: Exception | None = None
        # A bound: what comes faster than it is read must not hold up the tick.
        for _ in range(2 * self.topic.qos.depth + 2):
            try:
                # One by one: cyclonedds loses all that it took with one that it cannot read.
                samples = self.entity.take(N=1)
            except DDSException as error:
                raise Unmappable(f"it cannot be read ({error.msg or error})") from None
            except Exception as error:  # whatever cyclonedds makes of, say, a string that is no UTF-8
                unread = error
                continue
            if not samples:
                break
            if samples[0].sample_info.valid_data:
                taken.append(samples[0])
                unread = None
        if unread is not None:
            raise Unmappable(f"a message cannot be read ({unread})")
        return taken

    def poll(self) -> tuple[Any, int] | None:
        """The newest message since the last time, and its instant on our monotonic clock in ns. Raises Unmappable
        where it cannot be read."""
        taken = self.take()
        if not taken:
            return None
        source_ns = taken[-1].sample_info.source_timestamp
        return taken[-1], self._delays.captured_ns(source_ns, time.time_ns(), time.monotonic_ns())

    def writers(self) -> int:
        """How many publishers are matched."""
        self._greet()
        return len(self.entity.get_matched_publications())

    def incompatible(self) -> tuple[int, str]:
        """How many publishers were refused for their QoS, and the policy of the last one."""
        status = self.entity.get_requested_incompatible_qos_status()
        return status.total_count, POLICIES.get(status.last_policy_id, f"policy {status.last_policy_id}")


class Output:
    """A topic that is written. `promise_ms`: it is written at least so often while we live, and DDS is told: the
    deadline offered, half of the `lease` after which every subscriber finds that we are not alive. (Without a lease:
    of who speaks only if another one does not; a subscriber's deadline is kept by whoever writes.)"""

    def __init__(
        self, participant: DomainParticipant, topic: Topic, promise_ms: float | None = None, lease: bool = True
    ) -> None:
        self.topic = topic
        _warm(topic)
        self.entity = DataWriter(
            participant,
            DdsTopic(participant, dds_name(topic), topic.cls),
            _qos(topic.qos, "reliable", topic.type_hash, promise_ms, lease),
        )
        self.failed = 0

    def write(self, message: Any) -> bool:
        """Publish; False (and counted) where a reader that does not keep up blocked it for 10 ms. Raises Unmappable for
        a message that cannot be written at all."""
        try:
            self.entity.write(message)
        except DDSException:
            self.failed += 1
            return False
        except Exception as error:  # whatever cyclonedds makes of a value that its type cannot hold
            raise Unmappable(f"{self.topic.name}: {error}") from None
        return True

    def readers(self) -> int:
        """How many subscribers are matched."""
        return len(self.entity.get_matched_subscriptions())

    def incompatible(self) -> tuple[int, str]:
        """How many subscribers were refused for their QoS, and the policy of the last one."""
        status = self.entity.get_offered_incompatible_qos_status()
        return status.total_count, POLICIES.get(status.last_policy_id, f"policy {status.last_policy_id}")


@dataclass(frozen=True)
class DdsPeer:
    """Another participant's endpoint on a DDS topic."""

    topic: str
    type: str
    qos: DdsQos
    vendor: str = ""  # of its middleware, in four hexadecimal digits

    @property
    def type_hash(self) -> str | None:
        """Of its type, as nodes from Iron on tell it."""
        data = self.qos[Policy.Userdata].data if Policy.Userdata in self.qos else b""
        found = re.search(rb"(?:^|;)typehash=(RIHS01_[0-9a-f]{64});", data)
        return None if found is None else found[1].decode()

    def differs(self, topic: Topic) -> bool:
        """Whether it means another type by the same name."""
        return self.type == dds_type(topic) and self.type_hash not in (None, topic.type_hash)


def other_definition(what: str, peer: DdsPeer, topic: Topic) -> str:
    """What is told of a peer whose type is another by the same name."""
    told = f"{what} another {topic.type} than ours: its node's definition has the hash {peer.type_hash}."
    return f"{told} What passes is misread. Give the robot's own definition in the file."


class Peers:
    """What discovery has found, each endpoint read once: cyclonedds 11.0.1 leaks some 300 bytes of QoS a read.
    Thread-safe."""

    def __init__(self, participant: DomainParticipant, kind: Any) -> None:
        self._own = participant.get_guid()
        self._reader = BuiltinDataReader(participant, kind)
        self._news = ReadCondition(self._reader, SampleState.NotRead | ViewState.Any | InstanceState.Any)
        self._known: dict[str, DdsPeer] = {}
        self._lock = threading.Lock()

    def now(self) -> list[DdsPeer]:
        with self._lock:
            return self._look()

    def _look(self) -> list[DdsPeer]:
        while found := self._reader.read(N=64, condition=self._news):
            for e in found:
                if e.sample_info.instance_state != InstanceState.Alive:
                    self._known.pop(str(e.key), None)
                elif e.participant_key != self._own:
                    self._known[str(e.key)] = DdsPeer(e.topic_name, e.type_name, e.qos, str(e.participant_key)[:4])
        return list(self._known.values())
