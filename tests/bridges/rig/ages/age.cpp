// age ENDPOINT TIMED SECONDS: how old each call's observation is when the call is carried out, in ms, as JSON.
#include <rtcontrol/client.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

using namespace rtcontrol;

int main(int count, char** words) {
    if (count != 4) return 2;
    Options options;
    options.endpoint = words[1];
    options.instruction = "Follow the road.";
    options.hz = 16;
    options.tools = {Tool("drive", "Drive at a speed.").integer("speed", -20, 20, 10), Tool("stop", "Stand still.")};
    options.safe_calls = {{"stop", Map{}}};
    std::vector<double> ages;
    Client client(options, [&](const Call&, const Act& act) {
        if (act.kind == Force::call) ages.push_back(double(now_ns() - act.stamp_ns) / 1e6);
        return Outcome::done();
    });
    const bool timed = std::atoi(words[2]) != 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(int(std::atof(words[3]) * 1000));
    auto next = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() < end && !client.ended()) {
        if (timed) {
            if (!client.wait_to_look(std::chrono::milliseconds(200))) continue;
        } else {
            std::this_thread::sleep_until(next);
            next += std::chrono::microseconds(62500);
        }
        client.observe("left 40 right 10");
    }
    client.close();
    for (size_t i = 0; i < ages.size(); i++) std::printf("%s%.3f", i ? ", " : "[", ages[i]);
    std::printf("]\n");
}
