// A rover in one dimension: the wall comes nearer while it drives. rtcontrol serve --model random; ./rover [ENDPOINT]
#include <rtcontrol/client.h>

#include <atomic>
#include <csignal>
#include <cstdio>

using namespace rtcontrol;

static volatile std::sig_atomic_t over = 0;

int main(int count, char** words) {
    std::signal(SIGINT, [](int) { over = 1; });
    std::signal(SIGTERM, [](int) { over = 1; });

    Options options;
    if (count > 1) options.endpoint = words[1];
    options.name = "rover";
    options.instruction = "Drive on, and stop well before the wall.";
    options.model = "random";  // any legal call; leave it out where the server has a model for these tools
    options.hz = 10;
    options.tools = {Tool("drive", "Drive at a speed in cm/s.").integer("speed", -30, 30, 10),
                     Tool("stop", "Stand still.")};
    options.safe_calls = {{"stop", Map{}}};

    std::atomic<int> speed{0};  // the motor. It rests until a call comes, and whenever none is in force
    Client robot(options, [&](const Call& call, const Act& act) {
        if (call.name == "drive" && call["speed"].whole() > 25) return Outcome::refused("Not above 25 cm/s.");
        speed = call.name == "drive" ? int(call["speed"].whole()) : 0;
        std::printf("%s %s %d %s\n", act.kind == Force::safe ? "safe:" : "call:", call.name.c_str(), speed.load(),
                    act.cause.c_str());
        std::fflush(stdout);
        return Outcome::done();
    });

    double wall_m = 5;
    while (!over && !robot.ended()) {
        if (!robot.wait_to_look(std::chrono::milliseconds(200))) continue;  // just before each of the server's ticks
        wall_m = std::max(0.1, wall_m - speed / 100.0 / options.hz);
        char text[40];
        std::snprintf(text, sizeof text, "wall %.1f speed %d", wall_m, speed.load());
        if (const Sent sent = robot.observe(text); sent.problem)
            std::fprintf(stderr, "%s\n", sent.problem->text().c_str());
    }
    if (const Problem why = robot.ended()) std::fprintf(stderr, "%s\n", why->text().c_str());
    robot.close();  // safe is carried out before it returns
    return robot.ended() && robot.ended()->code != "closed";
}
