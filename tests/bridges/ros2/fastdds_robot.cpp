// A robot on eProsima Fast DDS, the middleware that ROS 2 ships as its default: for every Twist on rt/cmd_vel an
// Odometry on rt/odom that carries its values back. With a lease in ms it asks for that, and
// says when a publisher's began or ended. Built by test_fastdds.py; runs until killed.
#include <chrono>
#include <cstdio>
#include <thread>

#include <fastdds/dds/domain/DomainParticipant.hpp>
#include <fastdds/dds/domain/DomainParticipantFactory.hpp>
#include <fastdds/dds/publisher/DataWriter.hpp>
#include <fastdds/dds/publisher/Publisher.hpp>
#include <fastdds/dds/subscriber/DataReader.hpp>
#include <fastdds/dds/subscriber/DataReaderListener.hpp>
#include <fastdds/dds/subscriber/SampleInfo.hpp>
#include <fastdds/dds/subscriber/Subscriber.hpp>

#include "robotPubSubTypes.h"

using namespace eprosima::fastdds::dds;

// As the liveliness callback of a ROS 2 subscription.
struct Alive : DataReaderListener {
  void on_liveliness_changed(DataReader *, const LivelinessChangedStatus &status) override {
    std::printf("alive %d\n", status.alive_count);
    std::fflush(stdout);
  }
} alive;

int main(int argc, char **argv) {
  auto factory = DomainParticipantFactory::get_instance();
  auto participant = factory->create_participant(std::atoi(argv[1]), PARTICIPANT_QOS_DEFAULT);
  TypeSupport twist(new geometry_msgs::msg::TwistPubSubType());
  TypeSupport odometry(new nav_msgs::msg::OdometryPubSubType());
  twist.register_type(participant);
  odometry.register_type(participant);
  auto commands = participant->create_topic("rt/cmd_vel", twist.get_type_name(), TOPIC_QOS_DEFAULT);
  auto odometries = participant->create_topic("rt/odom", odometry.get_type_name(), TOPIC_QOS_DEFAULT);
  // rmw_qos_profile_default: reliable, the last 10, volatile.
  DataReaderQos reading = DATAREADER_QOS_DEFAULT;
  reading.reliability().kind = RELIABLE_RELIABILITY_QOS;
  reading.durability().kind = VOLATILE_DURABILITY_QOS;
  reading.history().kind = KEEP_LAST_HISTORY_QOS;
  reading.history().depth = 10;
  if (argc > 2) {
    reading.liveliness().kind = MANUAL_BY_TOPIC_LIVELINESS_QOS;
    reading.liveliness().lease_duration = eprosima::fastrtps::Duration_t(std::atof(argv[2]) / 1e3);
  }
  DataWriterQos writing = DATAWRITER_QOS_DEFAULT;
  writing.reliability().kind = RELIABLE_RELIABILITY_QOS;
  writing.durability().kind = VOLATILE_DURABILITY_QOS;
  writing.history().kind = KEEP_LAST_HISTORY_QOS;
  writing.history().depth = 10;
  auto subscriber = participant->create_subscriber(SUBSCRIBER_QOS_DEFAULT);
  auto publisher = participant->create_publisher(PUBLISHER_QOS_DEFAULT);
  auto reader = subscriber->create_datareader(commands, reading, &alive, StatusMask::liveliness_changed());
  auto writer = publisher->create_datawriter(odometries, writing);
  std::printf("%s %s\n", twist.get_type_name().c_str(), odometry.get_type_name().c_str());
  std::fflush(stdout);
  geometry_msgs::msg::Twist in;
  nav_msgs::msg::Odometry out;
  out.header().frame_id("odom");
  out.child_frame_id("base_footprint");
  for (uint32_t count = 0;;) {
    SampleInfo info;
    if (!reader->wait_for_unread_message({1, 0})) continue;
    while (reader->take_next_sample(&in, &info) == ReturnCode_t::RETCODE_OK) {
      if (!info.valid_data) continue;
      out.header().stamp().sec(7);
      out.header().stamp().nanosec(++count);
      out.pose().pose_().position().x(in.linear().x());
      out.pose().pose_().orientation().w(1.0);
      out.pose().covariance()[35] = in.linear().y();
      out.twist().twist_().angular().z(in.angular().z());
      writer->write(&out);
    }
  }
}
